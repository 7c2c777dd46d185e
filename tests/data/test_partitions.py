"""Who gets which samples: counts, classes and keys of every partition."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from commonground.data import (
    IID,
    Column,
    Dirichlet,
    LogNormal,
    Partition,
    Shards,
    Source,
    deal,
    parse_partition,
)
from commonground.data.arrays import Split
from commonground.data.partition_counts import apportion, assign_classes, counts_of_test, move_into_capacity
from commonground.errors import ConfigError, DataError
from tests.helpers import labelled

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def same(left: Split, right: Split) -> bool:
    return all(
        np.array_equal(getattr(left, field), getattr(right, field))
        for field in ("train_index", "train_offsets", "test_index", "test_offsets")
    )


# -- IID --------------------------------------------------------------------------------------------------------------


@quick
@given(clients=st.integers(1, 30), train=st.integers(30, 200), test=st.integers(30, 60), seed=st.integers(0, 9))
def test_iid_uses_every_sample_once_in_equal_sizes(clients: int, train: int, test: int, seed: int) -> None:
    data = deal(labelled([train, 5], [test, 5]), IID(), clients, seed)
    for index, sizes, samples in (
        (data.train_index, data.train_sizes, train + 5),
        (data.test_index, data.test_sizes, test + 5),
    ):
        assert sorted(index) == list(range(samples))
        assert sizes.max() - sizes.min() <= 1


# -- shards -----------------------------------------------------------------------------------------------------------


def test_shuffled_shards_may_repeat_a_class() -> None:
    """As the code of FedRep's authors deals them: by hand, 2 of 3 ways to deal four shards leave both with {0, 1}."""
    source = labelled([8, 8], [4, 4])
    seen = set()
    for seed in range(20):
        data = deal(source, Shards(2, repeats=True), 2, seed)
        train, test = data.class_counts("train"), data.class_counts("test")
        assert train.sum(axis=1).tolist() == [8, 8]
        assert np.array_equal(train, 2 * test)
        assert np.array_equal(train.sum(axis=0), [8, 8])
        seen.add(tuple(train[0]))
    assert seen == {(8, 0), (4, 4), (0, 8)}


def test_one_in_eleven_of_the_papers_clients_has_one_class() -> None:
    """Both shards of a client are of one class with probability 19/199 (20 shards of each of ten classes)."""
    source = labelled([200] * 10, [40] * 10)
    single = [
        (deal(source, parse_partition("shards:2,repeats=yes"), 100, seed).class_counts("train") > 0).sum(axis=1) == 1
        for seed in range(30)
    ]
    assert np.mean(single) == pytest.approx(19 / 199, abs=0.02)


@quick
@given(
    clients=st.integers(1, 40),
    classes=st.integers(2, 12),
    per_client=st.integers(1, 12),
    per_class=st.integers(40, 90),
    seed=st.integers(0, 2**40),
)
def test_shards_give_distinct_classes_and_even_parts(
    clients: int, classes: int, per_client: int, per_class: int, seed: int
) -> None:
    assume(per_client <= classes)
    source = labelled([per_class] * classes, [40] * classes)
    data = deal(source, Shards(per_client), clients, seed)
    train, test = data.class_counts("train"), data.class_counts("test")
    assert ((train > 0).sum(axis=1) == per_client).all()
    assert ((train > 0) == (test > 0)).all()
    shards = (train > 0).sum(axis=0)
    assert shards.max() - shards.min() <= 1
    assert shards.sum() == clients * per_client
    if clients * per_client >= classes:
        assert shards.min() >= 1
        assert sorted(data.train_index) == list(range(len(source.y_train)))
    for counts, size in ((train, per_class), (test, 40)):
        for label in np.flatnonzero(shards):
            parts = counts[counts[:, label] > 0, label]
            assert parts.sum() == size
            assert parts.max() - parts.min() <= 1


@pytest.mark.parametrize(("clients", "per_client", "size"), [(100, 2, 25), (500, 2, 5), (100, 5, 10)])
def test_shards_are_equal_where_classes_are_balanced(clients: int, per_client: int, size: int) -> None:
    source = labelled([500] * 10, [200] * 10)
    counts = deal(source, Shards(per_client), clients, 3).class_counts("train")
    assert (counts[counts > 0] == size).all()


def test_shards_pair_classes_at_random() -> None:
    source = labelled([500] * 10, [200] * 10)
    holds = [deal(source, Shards(2), 100, seed).class_counts("train") > 0 for seed in range(20)]
    together = sum(held.astype(int).T @ held.astype(int) for held in holds)
    pairs = together[~np.eye(10, dtype=bool)]
    expected = 20 * 100 / 45
    assert pairs.min() > 0.5 * expected
    assert pairs.max() < 1.5 * expected


def test_no_client_is_favoured_by_its_number() -> None:
    source = labelled([203] * 4, [40] * 4)  # 203 over 5 holders: three parts are larger
    total = np.zeros(10, dtype=np.int64)
    for seed in range(100):
        total += deal(source, Shards(2), 10, seed).train_sizes
    assert np.ptp(total) < 60


@quick
@given(clients=st.integers(1, 60), classes=st.integers(1, 20), per_client=st.integers(1, 20), seed=st.integers(0, 99))
def test_assigning_classes_always_succeeds(clients: int, classes: int, per_client: int, seed: int) -> None:
    assume(per_client <= classes)
    holds = assign_classes(clients, per_client, labelled([1] * classes, [1] * classes), np.random.default_rng(seed))
    assert (holds.sum(axis=1) == per_client).all()
    assert np.ptp(holds.sum(axis=0)) <= 1


def test_shards_refusals_have_the_numbers() -> None:
    source = labelled([20, 20], [5, 5])
    with pytest.raises(DataError, match=r"cannot hold 3 different classes: 'labelled' has 2"):
        Shards(3)(source, 4, 0)
    with pytest.raises(DataError, match=r"10 clients of 5 classes make 50 shards, but 'labelled' has only 40"):
        Shards(5)(source, 10, 0)
    with pytest.raises(DataError, match=r"class 'class \d' of 'labelled' has 5 test samples for the 8 clients"):
        Shards(2)(source, 8, 0)
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        Shards(0)


# -- Dirichlet --------------------------------------------------------------------------------------------------------


@quick
@given(
    clients=st.integers(2, 25),
    alpha=st.floats(0.3, 100),
    train=st.lists(st.integers(40, 80), min_size=2, max_size=6),
    seed=st.integers(0, 10**6),
)
def test_dirichlet_uses_every_sample_and_keeps_test_classes(
    clients: int, alpha: float, train: list[int], seed: int
) -> None:
    source = labelled(train, [30] * len(train))
    data = deal(source, Dirichlet(alpha), clients, seed)
    assert sorted(data.train_index) == list(range(sum(train)))
    assert sorted(data.test_index) == list(range(30 * len(train)))
    assert data.train_sizes.min() >= 2
    assert ((data.class_counts("train") > 0) == (data.class_counts("test") > 0)).all()


def test_dirichlet_test_classes_stay_within_training_classes_where_tests_are_scarce() -> None:
    source = labelled([500] * 5, [10] * 5)
    data = deal(source, Dirichlet(0.5), 40, 1)
    assert not ((data.class_counts("test") > 0) & (data.class_counts("train") == 0)).any()
    assert data.test_sizes.min() >= 1


def test_dirichlet_alpha_sets_how_many_classes_a_client_has() -> None:
    source = labelled([500] * 10, [200] * 10)

    def largest_share(alpha: float) -> float:
        counts = deal(source, Dirichlet(alpha), 20, 0).class_counts("train")
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)
    assert largest_share(100.0) < 0.15


def test_dirichlet_shares_have_the_variance_of_their_law() -> None:
    source = labelled([20_000], [2_000])
    # The partition alone: a data set of one class is refused.
    parts = [Dirichlet(2.0)(source, 10, seed) for seed in range(60)]
    shares = np.concatenate([np.diff(part.train_offsets) / 20_000 for part in parts])
    assert shares.var() == pytest.approx(0.1 * 0.9 / 21, rel=0.2)  # Dir(2, …, 2) over 10: p(1 - p) / (10 * 2 + 1)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_dirichlet_refuses_a_bad_alpha(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha must be a positive number"):
        Dirichlet(alpha)


def test_dirichlet_refusals_have_the_numbers() -> None:
    source = labelled([20, 20], [10, 10])
    with pytest.raises(DataError, match=r"15 clients of at least 3 samples need 45 training samples; .* has 40"):
        Dirichlet(1.0, minimum=3)(source, 15, 0)
    with pytest.raises(DataError, match=r"after 100 draws of dirichlet:1e-06 for 10 clients, \d+ of them"):
        Dirichlet(1e-6)(source, 10, 0)


# -- log-normal -------------------------------------------------------------------------------------------------------


@quick
@given(
    clients=st.integers(2, 30),
    mean=st.floats(12, 30),
    per_client=st.one_of(st.none(), st.integers(1, 5)),
    sigma=st.floats(0.2, 1.2),
    seed=st.integers(0, 10**6),
)
def test_lognormal_sizes_are_exact(clients: int, mean: float, per_client: int | None, sigma: float, seed: int) -> None:
    source = labelled([500] * 5, [100] * 5)
    partition = LogNormal(mean=mean, sigma=sigma, minimum=8, classes_per_client=per_client)
    data = deal(source, partition, clients, seed)
    train, test = data.class_counts("train"), data.class_counts("test")
    assert train.sum() == round(clients * mean)
    assert data.train_sizes.min() >= 8
    if per_client is not None:
        assert ((train > 0).sum(axis=1) == per_client).all()
        assert ((train > 0) == (test > 0)).all()
        assert (train.sum(axis=0) <= 500).all()


def test_lognormal_as_fedrep_femnist() -> None:
    source = labelled([4_800] * 10, [800] * 10)
    partition = LogNormal(mean=148, minimum=50, classes_per_client=3)
    data = deal(source, partition, 150, 0)
    sizes = data.train_sizes
    assert sizes.sum() == 22_200
    assert sizes.min() >= 50
    assert np.log(sizes - 49).std() == pytest.approx(1.0, abs=0.25)
    ratio = data.test_sizes / sizes
    assert ratio.mean() == pytest.approx(8_000 / 48_000, rel=0.1)
    assert np.corrcoef(data.test_sizes, sizes)[0, 1] > 0.99


def test_lognormal_without_mean_uses_all_that_fits() -> None:
    source = labelled([1_500] * 10, [800] * 10)
    for partition in (LogNormal(), LogNormal(minimum=50, classes_per_client=3)):
        data = deal(source, partition, 150, 0)
        assert data.train_sizes.sum() == 15_000
        assert data.test_sizes.sum() == 8_000
    skewed = deal(labelled([100] * 5, [40] * 5), LogNormal(None, 1.0, 10, 1), 5, 0)
    assert skewed.train_sizes.max() <= 100  # one class each: the largest client sets the scale of all
    assert skewed.train_sizes.max() >= 85


@pytest.mark.parametrize("consecutive", [False, True])
def test_lognormal_with_fewer_samples_than_asked_for(consecutive: bool) -> None:
    """What there is, dealt as without a mean; the mean where there is enough."""
    few, many = labelled([1_500] * 10, [800] * 10), labelled([4_800] * 10, [800] * 10)
    asked = LogNormal(148, 1.0, 50, 3, consecutive, fewer=True)
    assert parse_partition(str(asked)) == asked
    for source, same in ((few, replace(asked, mean=None, fewer=False)), (many, replace(asked, fewer=False))):
        found, wanted = deal(source, asked, 150, 7), deal(source, same, 150, 7)
        assert found.train_sizes.sum() == wanted.train_sizes.sum() > 14_000
        assert all(np.array_equal(found.train_indices(c), wanted.train_indices(c)) for c in range(150))
        assert all(np.array_equal(found.test_indices(c), wanted.test_indices(c)) for c in range(150))
    with pytest.raises(ConfigError, match="need the mean, as in lognormal:mean=148,fewer=yes"):
        parse_partition("lognormal:fewer=yes")


def test_lognormal_with_consecutive_classes_in_equal_parts() -> None:
    """As in the script behind FedRep's FEMNIST: client i holds classes i, i + 1 and i + 2, modulo ten."""
    source = labelled([1_500] * 10, [800] * 10)
    data = deal(source, LogNormal(mean=200, minimum=50, classes_per_client=3, consecutive=True), 20, 0)
    counts = data.class_counts("train")
    assert [np.flatnonzero(row).tolist() for row in counts[:10]] == [
        [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 7], [6, 7, 8], [7, 8, 9], [0, 8, 9], [0, 1, 9],
    ]  # fmt: skip
    assert ((counts[10:] > 0) == (counts[:10] > 0)).all()
    parts = [row[row > 0] for row in counts]
    assert max(np.ptp(part) for part in parts) <= 1
    assert len({part.sum() for part in parts}) > 10
    with pytest.raises(DataError, match="cannot hold 3 different classes: 'labelled' has 2"):
        LogNormal(classes_per_client=3, consecutive=True)(labelled([100] * 2, [10] * 2), 4, 0)


def test_lognormal_refusals_have_the_numbers() -> None:
    source = labelled([1_500] * 10, [800] * 10)
    with pytest.raises(DataError, match=r"150 clients of 148 samples on average ask for 22200 .* has 15000"):
        LogNormal(mean=148, minimum=50, classes_per_client=3)(source, 150, 0)
    with pytest.raises(DataError, match=r"150 clients of at least 101 samples need 15150"):
        LogNormal(minimum=101)(source, 150, 0)
    with pytest.raises(DataError, match=r"its classes have 10 to 1000 samples"):
        LogNormal(mean=100, minimum=50, classes_per_client=1)(labelled([1_000, 10], [50, 50]), 4, 0)
    with pytest.raises(ConfigError, match="mean size 10 is below the smallest size 50"):
        LogNormal(mean=10, minimum=50)
    with pytest.raises(ConfigError, match="smallest size 2 is below the 3 classes"):
        LogNormal(minimum=2, classes_per_client=3)
    with pytest.raises(ConfigError, match="sigma must be a positive number"):
        LogNormal(sigma=0.0)


# -- column -----------------------------------------------------------------------------------------------------------


def with_column(train: list[str], test: list[str]) -> Source:
    return Source(
        name="ward",
        x_train=np.zeros((len(train), 1), dtype=np.float32),
        y_train=np.zeros(len(train), dtype=np.int64),
        x_test=np.zeros((len(test), 1), dtype=np.float32),
        y_test=np.zeros(len(test), dtype=np.int64),
        classes=2,
        class_names=("none", "any"),
        train_columns={"hospital": np.array(train)},
        test_columns={"hospital": np.array(test)},
    )


def test_column_makes_sorted_values_clients() -> None:
    data = deal(with_column(["10", "2", "10"], ["2", "10"]), Column("hospital"), None, 0)
    assert data.client_names == ("2", "10")
    assert data.train_indices(0).tolist() == [1]
    assert data.train_indices(1).tolist() == [0, 2]
    assert data.test_indices(1).tolist() == [1]
    text = deal(with_column(["b", "a", "b"], ["b", "a"]), Column("hospital"), 2, 0)
    assert text.client_names == ("a", "b")


def test_column_refusals_name_what_is_wrong() -> None:
    source = with_column(["a", "b"], ["a", "c"])
    with pytest.raises(DataError, match=r"has no client column 'ward'; its columns are: 'hospital'"):
        Column("ward")(source, None, 0)
    with pytest.raises(DataError, match=r"has 3 distinct values, not the 5 clients"):
        Column("hospital")(source, 5, 0)
    with pytest.raises(DataError, match=r"1 of the 3 clients .* has no training samples \(the first is 'c'\)"):
        Column("hospital")(source, None, 0)
    with pytest.raises(DataError, match=r"has no test samples \(the first is 'b'\)"):
        Column("hospital")(with_column(["a", "b"], ["a"]), None, 0)


# -- all --------------------------------------------------------------------------------------------------------------

RANDOM: list[Partition] = [IID(), Shards(2), Dirichlet(0.5), LogNormal(), LogNormal(mean=20, classes_per_client=2)]


@pytest.mark.parametrize("partition", RANDOM, ids=str)
def test_splits_are_keyed_by_the_seed(partition: Partition) -> None:
    source = labelled([120] * 5, [60] * 5)
    assert same(partition(source, 10, 7), partition(source, 10, 7))
    assert not same(partition(source, 10, 7), partition(source, 10, 8))


@pytest.mark.parametrize("partition", RANDOM, ids=str)
@pytest.mark.parametrize("clients", [0, -3])
def test_no_clients_are_refused(partition: Partition, clients: int) -> None:
    with pytest.raises(ConfigError, match=f"number of clients must be a whole number of at least 1, not {clients}"):
        partition(labelled([9], [9]), clients, 0)


@pytest.mark.parametrize("partition", RANDOM, ids=str)
def test_more_clients_than_samples_are_refused(partition: Partition) -> None:
    with pytest.raises(DataError, match=r"11 clients need at least 11 test samples, one each; 'labelled' has 10"):
        partition(labelled([500] * 2, [5] * 2), 11, 0)
    with pytest.raises(ConfigError, match="number of clients is missing"):
        partition(labelled([500] * 2, [5] * 2), None, 0)


@pytest.mark.parametrize(
    "partition",
    [IID(), Shards(2), Dirichlet(0.5), LogNormal(minimum=3), LogNormal(minimum=3, classes_per_client=2)],
    ids=str,
)
def test_ten_thousand_clients_take_less_than_a_second(partition: Partition) -> None:
    source = labelled([10_000] * 10, [3_000] * 10)
    started = time.perf_counter()
    data = deal(source, partition, 10_000, 0)
    assert time.perf_counter() - started < 3.0  # 0.6 s on two idle cores
    assert data.clients == 10_000


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "partition",
    [
        *RANDOM,
        Column("hospital:ward"),
        Dirichlet(1 / 3, minimum=5),
        LogNormal(148, 0.1234567890123, 50, 3),
        LogNormal(1234567.5, minimum=1),
        LogNormal(minimum=12, classes_per_client=3, consecutive=True),
    ],
    ids=str,
)
def test_text_of_a_partition_parses_back(partition: Partition) -> None:
    assert parse_partition(str(partition)) == partition


def test_parsing_takes_classes_per_client_from_either_place() -> None:
    assert parse_partition("shards", 2) == parse_partition("shards:2") == parse_partition("shards:2", 2) == Shards(2)
    assert parse_partition("lognormal", 3) == LogNormal(classes_per_client=3)
    assert parse_partition("lognormal:mean=148, sigma=1, min=50", 3) == LogNormal(148, 1.0, 50, 3)
    assert parse_partition("dirichlet:0.1") == Dirichlet(0.1)


@pytest.mark.parametrize(
    ("text", "classes", "message"),
    [
        ("sorted", None, "unknown partition 'sorted'"),
        ("iid:3", None, "'3' is not understood; the forms are"),
        ("shards", None, "needs the classes per client"),
        ("shards:two", None, "classes must be a whole number, not 'two'"),
        ("shards:2", 3, "says 2 classes per client, the setting says 3"),
        ("dirichlet", None, "needs its alpha"),
        ("dirichlet:nan", None, "alpha must be a positive number"),
        ("dirichlet:0.1,min=x", None, "min must be a whole number"),
        ("dirichlet:0.1", 2, "have no meaning"),
        ("iid", 2, "have no meaning"),
        ("column:", None, "needs the column's name"),
        ("lognormal:148", None, "'148' is not understood"),
        ("lognormal:mean=1,mean=2", None, "is not understood"),
        ("lognormal:consecutive=yes", None, "need the classes per client, as in lognormal:classes=3"),
        ("lognormal:classes=3,consecutive=maybe", None, "consecutive is yes or no, not 'maybe'"),
    ],
)
def test_parsing_refuses(text: str, classes: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_partition(text, classes)


# -- arithmetic -------------------------------------------------------------------------------------------------------


@quick
@given(weights=st.lists(st.integers(0, 50), min_size=1, max_size=12), share=st.floats(0, 1))
def test_largest_remainder_is_exact_and_bounded(weights: list[int], share: float) -> None:
    array = np.array(weights)
    total = int(share * array.sum())
    parts = apportion(total, array)
    assert parts.sum() == total
    assert (parts >= 0).all()
    assert (parts <= array).all()
    if total:
        assert (np.abs(parts - total * array / array.sum()) < 1 + 1e-9).all()


def test_counts_by_hand() -> None:
    assert apportion(10, np.array([1.0, 1.0, 2.0])).tolist() == [3, 2, 5]
    assert apportion(np.array([4, 1]), np.array([[1.0, 3.0], [0.0, 1.0]])).tolist() == [[1, 3], [0, 1]]
    train = np.array([[90, 0], [9, 5], [1, 5]])
    assert counts_of_test(train, np.array([10, 2])).tolist() == [[8, 0], [1, 1], [1, 1]]


def test_moving_into_capacity_finds_chains_and_gives_up_when_there_are_none() -> None:
    holds = np.array([[True, True, False], [False, True, True]])
    counts = np.array([[5, 1, 0], [0, 4, 1]])  # the way from class 0 to the room in class 2 leads through class 1
    assert move_into_capacity(counts, holds, np.array([3, 5, 9]))
    assert counts.tolist() == [[3, 3, 0], [0, 2, 3]]
    assert not move_into_capacity(np.array([[5, 1, 0]]), np.array([[True, True, False]]), np.array([3, 2, 9]))
