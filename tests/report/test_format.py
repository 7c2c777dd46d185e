"""Numbers as people read them, one by one and below each other."""

from __future__ import annotations

from typing import Any

import pytest

from commonground.report.format import show_alike, show_with_interval


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


@pytest.mark.parametrize(
    ("value", "low", "high", "texts"),
    [
        (-4.0979, -4.5590, -3.6369, ("-4.10", "-4.56", "-3.64")),
        (-160.0, -285.0, -30.0, ("-160", "-285", "-30")),
        (-0.14601, -0.21092, -0.08111, ("-0.146", "-0.211", "-0.081")),
        (-3.96, -7.86, -0.0649, ("-4.0", "-7.9", "-0.1")),
        (-3.92, -7.86, -0.0249, ("-3.92", "-7.86", "-0.02")),  # an end below 0 does not read as 0
        (0.0, 0.0, 0.0881, ("0.000", "0.000", "0.088")),
        (86.37512, 86.33501, 86.41502, ("86.38", "86.34", "86.42")),  # no more than four digits
        (0.99923, 0.99923, 0.99923, ("1.00", "1.00", "1.00")),
        (0.9992316, 0.9992314, 0.9992318, ("0.9992", "0.9992", "0.9992")),
        (7.595e-15, 6.799e-15, 8.012e-15, ("7.59e-15", "6.80e-15", "8.01e-15")),
        (-0.001, -0.4, 0.4, ("0.00", "-0.40", "0.40")),  # no "-0.00"
        (2.0, None, None, ("2.00", "–", "–")),
        (0.00123, None, None, ("0.00123", "–", "–")),
        (None, 1.0, 2.0, ("–", "1", "2")),
    ],
)
def test_a_number_and_its_interval(value: Any, low: Any, high: Any, texts: tuple[str, str, str]) -> None:
    assert show_with_interval(value, low, high) == texts
