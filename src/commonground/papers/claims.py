"""How claims are judged: by where the 95 % interval of what was measured on many seeds lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from commonground.counted import counted
from commonground.papers.outcome import Claim, Outcome
from commonground.statistics import (
    EQUAL_DIGITS,
    Numbers,
    as_array,
    median_interval,
    proportion_interval,
    student_interval,
)

__all__ = ["SHARE", "Side", "claim", "fraction", "judge", "most", "tally"]

Side = Literal["above", "below", "within"]
FEWEST = 3  # seeds; fewer leave a claim open
FEWEST_FOR_MEDIANS = 6  # the range of fewer values is no 95 % interval of their median
ROUNDING = 10.0**-EQUAL_DIGITS  # nearer to 0 lie differences of equal figures that were added up in another order


def claim(
    text: str,
    source: str,
    paper: float | str | None,
    values: Numbers,
    side: Side,
    bound: float = 0.0,
    *,
    tolerance: float = 0.0,
    center: Literal["mean", "median"] = "mean",
    exact: bool = False,
    possible: tuple[float, float] = (-math.inf, math.inf),
) -> Claim:
    """Judge a statement on one value per seed; with fewer than three, of medians fewer than six, it is left open.

    Args:
        text, source, paper: see :class:`~commonground.papers.outcome.Claim`; the text says what is measured.
        values: [seeds].
        side: ``above`` or ``below``: on which side of ``bound`` the 95 % interval has to lie; ``within``: it has to lie
            inside bound ± tolerance.
        bound: what is compared with.
        tolerance: see ``side``.
        center: what stands for the seeds; the median where means are heavy-tailed.
        exact: whether it is an identity, which a single case shows or refutes.
        possible: between which values the quantity lies whatever is found; the interval that is told is cut there.

    Returns:
        The claim; ``holds`` is None if the interval lies neither on the claimed side nor wholly on the other. What has
        no value in a seed has none over seeds either, and no verdict.
    """
    values = as_array(values)
    if np.isnan(values).any():
        return _unknown(text, source, paper, values)
    middle, low, high = (float(v) for v in (student_interval if center == "mean" else median_interval)(values))
    if side == "above":
        holds = _above(low, high, bound)
    elif side == "below":
        holds = _above(-high, -low, -bound)
    else:
        inside = bound - tolerance <= low and high <= bound + tolerance
        outside = high < bound - tolerance or low > bound + tolerance
        holds = True if inside else False if outside else None
    low, high = max(low, possible[0]), min(high, possible[1])
    enough = len(values) >= (FEWEST if center == "mean" else FEWEST_FOR_MEDIANS)
    return Claim(text, source, paper, middle, low, high, len(values), holds if exact or enough else None)


SHARE = (0.0, 1.0)
"""Between which values a share lies."""


def _unknown(text: str, source: str, paper: float | str | None, values: Numbers) -> Claim:
    """A claim on which some seed says nothing."""
    return Claim(text, source, paper, math.nan, math.nan, math.nan, len(as_array(values)), None)


def _above(low: float, high: float, bound: float) -> bool | None:
    """Whether an interval lies above a bound; None if it lies neither above nor below, or is 0 but for rounding."""
    margin = ROUNDING if bound == 0 else 0.0
    return True if low > bound + margin else False if high < bound - margin else None


def fraction(
    text: str,
    source: str,
    paper: float | str | None,
    happened: Numbers,
    least: float | None = None,
    side: Literal["above", "below"] = "above",
) -> Claim:
    """Judge a statement about every case by the share of cases in which it is true, with its exact 95 % interval.

    A share can be judged by where its interval lies, "always" cannot: no number of seeds shows that there is no
    exception. So a statement about every case holds as *not contradicted*, and the claim's text says in how many seeds;
    the interval's lower end says how rare exceptions have to be for that. One exception refutes it. With fewer than
    six seeds, whose interval reaches below one half, what is not contradicted stays open.

    Args:
        text, source, paper: see :class:`~commonground.papers.outcome.Claim`.
        happened: truth values [seeds], or [seeds, ...] with several cases per seed.
        least: share on whose one side the interval has to lie, of three seeds or more; None for "always", which is
            judged by seeds: each counts as one case, in which all of its own are true.
        side: of that share; below it what is said of every case is refuted.
    """
    if np.isnan(as_array(happened)).any():
        return _unknown(text, source, paper, happened)
    cases = as_array(happened) != 0
    if least is not None:
        share, low, high = proportion_interval(cases)
        beyond = _above(low, high, least) if side == "above" else _above(-high, -low, -least)
        holds = beyond if len(cases) >= FEWEST else None
        return Claim(text, source, paper, share, low, high, len(cases), holds)
    every = cases.reshape(len(cases), -1).all(axis=1)
    share, low, high = proportion_interval(every)
    broken = int((~every).sum())
    seeds = counted(len(every), "seed")
    told = f"contradicted in {broken} of {seeds}" if broken else f"not contradicted in {seeds}"
    holds = False if broken else True if low > 0.5 else None
    return Claim(f"{text}: {told}", source, paper, share, low, high, len(every), holds)


def most(text: str, source: str, paper: float | str | None, happened: Numbers) -> Claim:
    """Judge "in most seeds": the share of seeds, one case each, whose exact 95 % interval has to lie above one half."""
    if np.isnan(as_array(happened)).any():
        return _unknown(text, source, paper, happened)
    share, low, high = proportion_interval(happened)
    return Claim(text, source, paper, share, low, high, as_array(happened).size, _above(low, high, 0.5))


def tally(claims: Sequence[Claim]) -> str:
    """How many of these hold: ``3 of 16 hold, 1 does not, 12 are open``."""
    yes, no = (sum(one.holds is verdict for one in claims) for verdict in (True, False))
    unknown = len(claims) - yes - no
    parts = [f"{yes} of {len(claims)} hold{'s' if yes == 1 else ''}"]
    parts += [f"{no} do{'es' if no == 1 else ''} not"] if no else []
    parts += [f"{unknown} {'is' if unknown == 1 else 'are'} open"] if unknown else []
    return ", ".join(parts)


def judge(
    outcome: Outcome, text: str, source: str, paper: float | str | None, values: Numbers, *args: Any, **kw: Any
) -> None:
    """Add a claim judged over seeds (see :func:`claim`)."""
    outcome.claims.append(claim(text, source, paper, values, *args, **kw))
