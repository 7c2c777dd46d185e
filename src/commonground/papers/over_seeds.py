"""Judging and drawing what was measured on many seeds, a value (or a curve) per seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from commonground.papers.base import Claim, Curve, Outcome

__all__ = ["Side", "claim", "fraction", "judge", "mean_curve", "mean_interval", "median_curve", "median_interval"]

Array = npt.ArrayLike
Side = Literal["above", "below", "within"]


def mean_interval(values: Array, axis: int = 0) -> tuple[npt.NDArray[np.float64], ...]:
    """Mean and its 95 % interval (Student's) over an axis of seeds: (mean, low, high), each without that axis."""
    values = np.asarray(values, dtype=np.float64)
    count = values.shape[axis]
    mean = values.mean(axis)
    if count < 2:
        return mean, mean, mean
    half = stats.t.ppf(0.975, count - 1) * values.std(axis, ddof=1) / np.sqrt(count)
    return mean, mean - half, mean + half


def median_interval(values: Array, axis: int = 0) -> tuple[npt.NDArray[np.float64], ...]:
    """Median and an at least 95 % interval of it from order statistics (exact for any distribution).

    With fewer than 6 values the interval is their whole range, which covers less.
    """
    values = np.sort(np.asarray(values, dtype=np.float64), axis=axis)
    count = values.shape[axis]
    # P(X_(j) < median < X_(n+1-j)) = 1 - 2 P(Bin(n, 1/2) < j)
    below = max(int(stats.binom.ppf(0.025, count, 0.5)), 1)
    low, high = (np.take(values, i, axis) for i in (below - 1, count - below))
    return np.median(values, axis=axis), low, high


def mean_curve(x: Sequence[float], values: Array) -> Curve:
    """A curve of means with 95 % bands from values [seeds, len(x)]."""
    return _curve(x, mean_interval(values))


def median_curve(x: Sequence[float], values: Array) -> Curve:
    """A curve of medians with bands of at least 95 % from values [seeds, len(x)]."""
    return _curve(x, median_interval(values))


def _curve(x: Sequence[float], interval: tuple[npt.NDArray[np.float64], ...]) -> Curve:
    mean, low, high = (np.asarray(v).tolist() for v in interval)
    return Curve([float(v) for v in x], mean, low, high)


def claim(
    text: str,
    source: str,
    paper: float | str | None,
    values: Array,
    side: Side,
    bound: float = 0.0,
    *,
    tolerance: float = 0.0,
    center: Literal["mean", "median"] = "mean",
) -> Claim:
    """Judge a statement on one value per seed.

    Args:
        text, source, paper: see :class:`~commonground.papers.base.Claim`; the text says what is measured.
        values: [seeds].
        side: ``above`` or ``below``: on which side of ``bound`` the 95 % interval has to lie; ``within``: it has to lie
            inside bound ± tolerance.
        bound: what is compared with.
        tolerance: see ``side``.
        center: what stands for the seeds; the median where means are heavy-tailed.

    Returns:
        The claim; ``holds`` is None if the interval lies neither on the claimed side nor wholly on the other.
    """
    values = np.asarray(values, dtype=np.float64)
    middle, low, high = (float(v) for v in (mean_interval if center == "mean" else median_interval)(values))
    if side == "above":
        holds = True if low > bound else False if high < bound else None
    elif side == "below":
        holds = True if high < bound else False if low > bound else None
    else:
        inside = bound - tolerance <= low and high <= bound + tolerance
        outside = high < bound - tolerance or low > bound + tolerance
        holds = True if inside else False if outside else None
    return Claim(text, source, paper, middle, low, high, len(values), holds)


def fraction(
    text: str, source: str, paper: float | str | None, happened: Array, least: float = 1.0, *, seeds: int | None = None
) -> Claim:
    """Judge a statement about every case: the share of cases in which it is true, with its exact 95 % interval.

    Args:
        text, source, paper: see :class:`~commonground.papers.base.Claim`.
        happened: truth values, one per case (a seed, or a round of a seed).
        least: share from which on the claim holds.
        seeds: number of seeds behind the cases, by default one per case.
    """
    cases = np.asarray(happened, dtype=bool).ravel()
    share = float(cases.mean())
    around = stats.binomtest(int(cases.sum()), len(cases)).proportion_ci(0.95)
    return Claim(text, source, paper, share, float(around.low), float(around.high), seeds or len(cases), share >= least)


def judge(
    outcome: Outcome, text: str, source: str, paper: float | str | None, values: Array, *args: Any, **kw: Any
) -> None:
    """Add a claim judged over seeds (see :func:`claim`); with fewer than three seeds it is left open."""
    judged = claim(text, source, paper, values, *args, **kw)
    outcome.claims.append(judged if judged.seeds >= 3 else dataclasses.replace(judged, holds=None))
