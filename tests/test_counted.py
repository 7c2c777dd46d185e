"""Numbers of things in words."""

from __future__ import annotations

import pytest

from commonground.counted import counted, in_ranges


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 clients"), (1, "1 client"), (2, "2 clients"), (1_200_000, "1,200,000 clients")]
)
def test_one_and_several(count: int, said: str) -> None:
    assert counted(count, "client") == said


@pytest.mark.parametrize(
    ("numbers", "said"), [((), ""), ((3,), "3"), ((2, 0, 1), "0–2"), ((0, 1, 7, 9, 10, 10), "0–1, 7, 9–10")]
)
def test_numbers_in_a_row(numbers: tuple[int, ...], said: str) -> None:
    assert in_ranges(numbers) == said
