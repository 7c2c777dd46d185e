"""How claims are judged: by where the interval of what was measured lies."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from commonground.papers.claims import SHARE, claim, fraction, judge, most, tally
from commonground.papers.local_steps.features import in_every_client, not_in_every_client
from commonground.papers.outcome import Outcome
from commonground.papers.printed_values import printed_side
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


def test_most_seeds_is_judged_by_its_interval() -> None:
    assert most("", "", None, [True] * 18 + [False] * 2).holds is True
    assert most("", "", None, [True] * 12 + [False] * 8).holds is None
    assert most("", "", None, [False] * 20).holds is False


def test_fewer_than_three_seeds_leave_a_claim_open() -> None:
    outcome = Outcome()
    judge(outcome, "two", "", None, [1.0, 1.1], "within", 1.0, tolerance=100.0)
    judge(outcome, "three", "", None, [1.0, 1.1, 1.2], "above")
    assert [c.holds for c in outcome.claims] == [None, True]


def test_whoever_judges_them() -> None:
    """Beside an identity, which one case shows or refutes."""
    assert claim("", "", None, [1.0], "above").holds is None
    assert claim("", "", None, [-1.0, -1.0], "above").holds is None
    assert claim("", "", None, [1e-12], "below", 1e-9, exact=True).holds is True
    assert claim("", "", None, [1e-3], "below", 1e-9, exact=True).holds is False
    assert fraction("", "", None, np.zeros((2, 90)), 0.5).holds is None
    assert fraction("", "", None, [False] * 20, 0.5).holds is False


def test_always_is_not_contradicted_in_so_many_seeds() -> None:
    held = fraction("It holds", "", None, [True] * 40)
    assert held.holds is True
    assert held.claim == "It holds: not contradicted in 40 seeds"
    assert held.measured == 1.0
    assert held.low == pytest.approx(0.025 ** (1 / 40))
    # A seed counts once however many of its cases are wrong, and one seed refutes.
    cases = np.ones((40, 7))
    cases[3, 2:] = 0
    broken = fraction("It holds", "", None, cases)
    assert broken.holds is False
    assert broken.claim == "It holds: contradicted in 1 of 40 seeds"
    assert broken.measured == pytest.approx(39 / 40)
    # Five seeds do not even show that it is so in most.
    assert [fraction("", "", None, [True] * count).holds for count in (5, 6)] == [None, True]


def test_a_share_is_judged_by_the_side_of_its_interval() -> None:
    assert fraction("", "", None, [True] * 60, 0.95).holds is None  # down to 0.94
    assert fraction("", "", None, [True] * 80, 0.95).holds is True
    assert fraction("", "", None, np.ones((20, 4)), 0.95).holds is None  # 80 cases of 20 seeds are not 80 seeds
    assert fraction("", "", None, [True] * 11 + [False] * 9, 0.5).holds is None
    assert fraction("", "", None, [True] * 2 + [False] * 18, 0.5).holds is False


def test_what_is_said_of_every_client_cannot_hold_and_fail_at_once() -> None:
    for true in range(61):
        happened = torch.tensor([[seed < true] for seed in range(60)])
        holds, fails = in_every_client("", "", "", happened).holds, not_in_every_client("", "", "", happened).holds
        assert (holds is True) == (fails is False), true
        assert (holds is False) == (fails is True), true
    assert not_in_every_client("", "", "", torch.ones(80, 6)).holds is False  # not open, however many seeds there are


def test_a_tally_says_how_many() -> None:
    claims = [fraction("", "", None, [True] * n, 0.9) for n in (100, 100, 20)]
    assert tally(claims) == "2 of 3 hold, 1 is open"
    assert tally([*claims, fraction("", "", None, [False] * 9)]) == "2 of 4 hold, 1 does not, 1 is open"


def test_rounding_decides_nothing() -> None:
    """The same accuracies added up in another order: 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 are not the same number."""
    gap = 100 * ((0.1 + 0.2 + 0.3) - (0.3 + 0.2 + 0.1))
    assert gap > 0
    for sign in (1, -1):
        assert claim("", "", None, [sign * gap] * 3, "above").holds is None
        assert claim("", "", None, [sign * gap] * 3, "below").holds is None
    # A bound that is itself so small is meant.
    assert claim("", "", None, [1e-15] * 3, "below", 1e-14).holds is True
    assert claim("", "", None, [1e-13] * 3, "below", 1e-14).holds is False


@pytest.mark.parametrize("center", ["mean", "median"])
def test_what_has_no_value_is_not_judged(center: Literal["mean", "median"]) -> None:
    outcome = Outcome()
    judge(outcome, "a ratio of zeros", "", None, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, float("nan")], "above", center=center)
    judge(outcome, "a value", "", None, [1.0, 1.1, 1.2], "above")
    assert outcome.claims[0].holds is None
    outcome.leave_out_undefined()
    assert [one.claim for one in outcome.claims] == ["a value"]
    assert outcome.notes == ["Not judged, since it has no value with these settings: a ratio of zeros."]


def test_a_median_is_judged_on_six_seeds() -> None:
    """Of five values the range has the median with 94 %, of three with 75 %."""
    for seeds in range(1, 9):
        values = 1.0 + np.arange(seeds) / 10
        median = claim("up", "a paper", None, values, "above", center="median")
        mean = claim("up", "a paper", None, values, "above")
        assert median.holds is (True if seeds >= 6 else None)
        assert mean.holds is (True if seeds >= 3 else None)


def test_what_some_seed_says_nothing_on_is_not_judged() -> None:
    unknown = [1.0] * 8 + [float("nan")]
    for judged in (
        fraction("x", "s", None, unknown),
        fraction("x", "s", None, unknown, 0.5),
        most("x", "s", None, unknown),
    ):
        assert (judged.holds, np.isnan(judged.measured), judged.seeds) == (None, True, 9)


def test_the_interval_of_a_share_ends_where_shares_do() -> None:
    values = np.array([0.9, 1.0, 1.0, 1.0])
    plain = claim("t", "s", None, values, "above", 0.5)
    share = claim("t", "s", None, values, "above", 0.5, possible=SHARE)
    assert plain.high > 1
    assert (share.low, share.high, share.holds) == (plain.low, 1.0, plain.holds)


def test_on_which_side_a_paper_prints_a_value() -> None:
    assert [printed_side(lead) for lead in (2.0, -2.0, 0.0, None)] == ["above", "below", "above", "above"]
    assert [printed_side(lead, "below") for lead in (2.0, 0.0, None)] == ["above", "below", "below"]
