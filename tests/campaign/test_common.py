from tests.campaign.common import drawn, tries


def test_tries_are_bounded_in_count_and_in_time() -> None:
    assert list(tries(4, 1)) == [0, 1, 2, 3]
    assert list(tries(4, -1)) == [0]


def test_a_try_is_drawn_from_its_seed_and_number_alone() -> None:
    assert drawn(1, 2).random() == drawn(1, 2).random() != drawn(2, 1).random()
