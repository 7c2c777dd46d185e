"""Numbers as people read them, one by one and below each other."""

from __future__ import annotations

from typing import Any

import pytest

from commonground.report.format import show_alike


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([87.0, 49.48, None], ["87.00", "49.48", "–"]),
        ([3, 0.123], ["3", "0.123"]),  # a count is no measurement
        ([100_000, 0.5], ["100,000", "0.5"]),
        ([87.0, 0.00012], ["87", "0.00012"]),  # zeros would say nothing
        ([1e9, 2.5], ["1e+09", "2.5"]),
        ([1, 2], ["1", "2"]),
        ([], []),
    ],
)
def test_numbers_below_each_other(values: list[Any], texts: list[str]) -> None:
    assert show_alike(values) == texts
