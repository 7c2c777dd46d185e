"""How claims are judged: by where the 95 % interval of what was measured on many seeds lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from commonground.papers.outcome import Claim, Outcome
from commonground.statistics import (
    Numbers,
    Values,
    accuracy_interval,
    as_array,
    median_interval,
    proportion_interval,
    student_interval,
)

__all__ = ["Side", "claim", "difference", "fraction", "judge", "most"]

Side = Literal["above", "below", "within"]
FEWEST = 3  # seeds; fewer leave a claim open


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
) -> Claim:
    """Judge a statement on one value per seed.

    Args:
        text, source, paper: see :class:`~commonground.papers.outcome.Claim`; the text says what is measured.
        values: [seeds].
        side: ``above`` or ``below``: on which side of ``bound`` the 95 % interval has to lie; ``within``: it has to lie
            inside bound ± tolerance.
        bound: what is compared with.
        tolerance: see ``side``.
        center: what stands for the seeds; the median where means are heavy-tailed.

    Returns:
        The claim; ``holds`` is None if the interval lies neither on the claimed side nor wholly on the other.
    """
    values = as_array(values)
    middle, low, high = (float(v) for v in (student_interval if center == "mean" else median_interval)(values))
    if side == "above":
        holds = _above(low, high, bound)
    elif side == "below":
        holds = _above(-high, -low, -bound)
    else:
        inside = bound - tolerance <= low and high <= bound + tolerance
        outside = high < bound - tolerance or low > bound + tolerance
        holds = True if inside else False if outside else None
    return Claim(text, source, paper, middle, low, high, len(values), holds)


def _above(low: float, high: float, bound: float) -> bool | None:
    """Whether an interval lies above a bound; None if it lies neither above nor below."""
    return True if low > bound else False if high < bound else None


def difference(
    claim: str,
    source: str,
    paper: float | None,
    one: tuple[Sequence[float], Sequence[Values]],
    other: tuple[Sequence[float], Sequence[Values]],
) -> Claim:
    """Judge "one above other" by the paired difference of two methods, in percentage points; open on few seeds.

    Args:
        claim, source, paper: see :class:`~commonground.papers.outcome.Claim`.
        one, other: per seed the mean accuracy, and per seed the clients' accuracies, paired by client.
    """
    means = [100 * (a - b) for a, b in zip(one[0], other[0], strict=True)]
    clients = [100 * (a - b) for a, b in zip(one[1], other[1], strict=True)]
    mean, low, high = accuracy_interval(means, clients)
    holds = _above(low, high, 0.0) if len(means) >= FEWEST else None
    return Claim(claim, source, paper, mean, low, high, len(means), holds)


def fraction(
    text: str,
    source: str,
    paper: float | str | None,
    happened: Numbers,
    least: float = 1.0,
    *,
    seeds: int | None = None,
) -> Claim:
    """Judge a statement about every case: the share of cases in which it is true, with its exact 95 % interval.

    Args:
        text, source, paper: see :class:`~commonground.papers.outcome.Claim`.
        happened: truth values, one per case (a seed, or a round of a seed).
        least: share from which on the claim holds.
        seeds: number of seeds behind the cases, by default one per case.
    """
    share, low, high = proportion_interval(happened)
    return Claim(text, source, paper, share, low, high, seeds or as_array(happened).size, share >= least)


def most(text: str, source: str, paper: float | str | None, happened: Numbers) -> Claim:
    """Judge "in most seeds": the share of seeds, one case each, whose exact 95 % interval has to lie above one half."""
    share, low, high = proportion_interval(happened)
    return Claim(text, source, paper, share, low, high, as_array(happened).size, _above(low, high, 0.5))


def judge(
    outcome: Outcome, text: str, source: str, paper: float | str | None, values: Numbers, *args: Any, **kw: Any
) -> None:
    """Add a claim judged over seeds (see :func:`claim`); with fewer than three seeds it is left open."""
    judged = claim(text, source, paper, values, *args, **kw)
    outcome.claims.append(judged if judged.seeds >= FEWEST else dataclasses.replace(judged, holds=None))
