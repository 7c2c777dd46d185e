"""How claims are judged: by where the interval of what was measured lies."""

from __future__ import annotations

import numpy as np
import pytest

from commonground.papers.claims import claim, difference, fraction, judge, most
from commonground.papers.outcome import Outcome
from commonground.statistics import student_interval


def test_claims_are_judged_by_their_interval() -> None:
    values = [1.0, 2.0, 3.0]
    _, low, high = student_interval(values)
    assert (claim("", "", None, values, "above", float(low) - 0.01).holds) is True
    assert (claim("", "", None, values, "above", 2.0).holds) is None
    assert (claim("", "", None, values, "below", float(low) - 0.01).holds) is False
    assert (claim("", "", None, values, "within", 2.0, tolerance=float(high - low)).holds) is True
    assert fraction("", "", None, [True] * 19 + [False]).holds is False
    assert fraction("", "", None, [True] * 19 + [False], 0.9).measured == pytest.approx(0.95)


@pytest.mark.parametrize(("shift", "holds"), [(0.2, True), (-0.2, False), (0.0, None)])
def test_a_difference_is_paired_by_seed(shift: float, holds: bool | None) -> None:
    # Seeds differ by far more than the methods: unpaired, no shift of 0.2 would show.
    ones = [np.linspace(0, start, 50) for start in (0.1, 0.5, 0.9)]
    others = [values + shift + noise for values, noise in zip(ones, (0.01, -0.01, 0.0), strict=True)]
    pair = [([float(values.mean()) for values in each], each) for each in (others, ones)]
    claim = difference("a above b", "paper", 1.0, *pair)
    assert claim.holds is holds
    assert claim.measured == pytest.approx(100 * shift, abs=1e-9)


def test_a_difference_of_one_seed_is_paired_by_client_and_left_open() -> None:
    clients = np.linspace(0, 1, 50)
    other = clients + 0.2 + np.where(np.arange(50) % 2, 0.01, -0.01)
    claim = difference("a above b", "", 1.0, ([float(other.mean())], [other]), ([float(clients.mean())], [clients]))
    assert claim.holds is None
    assert 19 < claim.low < claim.measured < claim.high < 21


def test_most_seeds_is_judged_by_its_interval() -> None:
    assert most("", "", None, [True] * 18 + [False] * 2).holds is True
    assert most("", "", None, [True] * 12 + [False] * 8).holds is None
    assert most("", "", None, [False] * 20).holds is False


def test_fewer_than_three_seeds_leave_a_claim_open() -> None:
    outcome = Outcome()
    judge(outcome, "two", "", None, [1.0, 1.1], "within", 1.0, tolerance=100.0)
    judge(outcome, "three", "", None, [1.0, 1.1, 1.2], "above")
    assert [c.holds for c in outcome.claims] == [None, True]
