"""Careful statistics: spread and intervals over seeds, and differences paired by client and by seed.

Two questions are kept apart. *Over clients*: do these clients do better under one method than under the other, given
these training runs? *Over seeds*: would the means differ again if splits, weights and batches were drawn anew? A few
seeds cannot answer the second with a small p-value, however large the difference (:func:`smallest_p`).

All intervals are 95 % ones unless a level is given.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "Difference",
    "Numbers",
    "Values",
    "as_array",
    "bootstrap_interval",
    "detectable_difference",
    "holm",
    "mean",
    "median_interval",
    "paired_difference",
    "proportion_interval",
    "smallest_p",
    "spread",
    "student_interval",
    "wilcoxon_p",
    "without_dust",
]

Values = npt.NDArray[np.float64]
Numbers = npt.ArrayLike | torch.Tensor
"""What is computed with: anything NumPy understands, or a tensor on any device."""

RESAMPLES = 9_999
LARGE = 5_000  # beyond so many pairs the percentile interval equals the BCa one, which costs their square
_BATCH = 2_000_000  # numbers resampled at a time

EXACT_PAIRS = 50  # that differ: up to so many the signed-rank statistic's distribution is computed

EQUAL_DIGITS = 12
"""Figures that differ beyond these digits differ by rounding."""


def without_dust(values: Numbers, size: float = 1.0) -> Values:
    """Values, or differences of them, without the last digits in which equal ones differ that were added up in another
    order.

    Args:
        values: any.
        size: of the largest of the values (of accuracies 1 at most).
    """
    unit = 10.0 ** math.ceil(math.log10(size)) if 0 < size < math.inf else 1.0
    return np.round(np.asarray(values, dtype=float) / unit, EQUAL_DIGITS) * unit


def mean(values: Sequence[float]) -> float:
    """The mean; an integer if all values are that integer."""
    return values[0] if all(value == values[0] for value in values) else float(np.mean(values))


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation (ddof = 1) over seeds; the latter is None for a single seed."""
    array = np.asarray(values, dtype=float)
    return {"mean": float(array.mean()), "std": float(array.std(ddof=1)) if len(array) > 1 else None}


def as_array(values: Numbers) -> Values:
    """The same numbers as a float64 array; a tensor is fetched from its device."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def student_interval(values: Numbers, axis: int = 0) -> tuple[Values, Values, Values]:
    """Mean and its interval by Student's t over an axis of seeds.

    Returns:
        (mean, low, high), each without that axis; all three the mean for a single seed.
    """
    values = as_array(values)
    count = values.shape[axis]
    mean = values.mean(axis)
    if count < 2:
        return mean, mean, mean
    half = _student_half_width(values.std(axis, ddof=1), count)
    return mean, mean - half, mean + half


def _student_half_width(spread: Any, count: int) -> Any:
    """t(0.975, n − 1) · s/√n; ``spread`` is a number or an array of sample standard deviations."""
    from scipy.stats import t

    return t.ppf(0.975, count - 1) * spread / math.sqrt(count)


def median_interval(values: Numbers, axis: int = 0) -> tuple[Values, Values, Values]:
    """Median and an at least 95 % interval of it from order statistics (exact for any distribution).

    With fewer than 6 values the interval is their whole range, which covers less.

    Returns:
        (median, low, high), each without the axis.
    """
    from scipy.stats import binom

    values = np.sort(as_array(values), axis=axis)
    count = values.shape[axis]
    # P(X_(j) < median < X_(n+1-j)) = 1 - 2 P(Bin(n, 1/2) < j)
    below = max(int(binom.ppf(0.025, count, 0.5)), 1)
    low, high = (np.take(values, i, axis) for i in (below - 1, count - below))
    return np.median(values, axis=axis), low, high


def proportion_interval(happened: Numbers) -> tuple[float, float, float]:
    """The share of cases in which something is true, with its exact interval (Clopper and Pearson 1934).

    Cases of one seed depend on each other. With several per seed the interval is that of the effective number of cases
    (Korn and Graubard 1998): the number of independent ones whose share would spread as much over seeds as it does, at
    most all, times (t_{0.975, cases − 1}/t_{0.975, seeds − 1})², since few seeds tell that spread badly. It is no
    smaller than the number of seeds, and equal to it where all cases are alike, since then nothing shows how much they
    depend on each other.

    Args:
        happened: truth values [seeds], or [seeds, ...] with several cases per seed.

    Returns:
        (share, low, high).

    Raises:
        ValueError: one is NaN, of which nobody knows whether it is true.
    """
    from scipy.stats import beta, t

    values = as_array(happened)
    if np.isnan(values).any():
        raise ValueError("of a case that is NaN nobody knows whether it is true")
    cases = values != 0
    by_seed = cases.reshape(len(cases), -1).mean(axis=1)
    share, seeds = float(by_seed.mean()), len(by_seed)
    spread_of_mean = float(by_seed.var(ddof=1)) / seeds if seeds > 1 else 0.0
    count = float(seeds)
    if spread_of_mean > 0:
        independent = min(share * (1 - share) / spread_of_mean, cases.size)
        known = (t.ppf(0.975, cases.size - 1) / t.ppf(0.975, seeds - 1)) ** 2
        count = max(independent * float(known), count)
    happy, others = count * share, count * (1 - share)
    low = float(beta.ppf(0.025, happy, others + 1)) if share > 0 else 0.0
    high = float(beta.ppf(0.975, happy + 1, others)) if share < 1 else 1.0
    return share, low, high


def detectable_difference(differences: Values, power: float = 0.8) -> float:
    """The true difference that a paired interval over so many seeds of this spread would find with a probability.

    Args:
        differences: one per seed, at least two.
        power: that probability.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    n = len(differences)
    beyond = t.ppf(0.975, n - 1)
    # The mean over its standard error follows the noncentral t; adding two central quantiles falls short on few seeds.
    shift = brentq(lambda shift: nct.sf(beyond, n - 1, shift) - power, 0.0, beyond + t.ppf(power, n - 1) + 10.0)
    return float(shift * float(differences.std(ddof=1)) / math.sqrt(n))


def wilcoxon_p(differences: Sequence[float] | Values, size: float = 1.0) -> float | None:
    """Two-sided p-value of Wilcoxon's signed-rank test for differences symmetric about 0.

    Zeros take part in the ranking and then count for neither side (Pratt 1959), so that many equal pairs make the
    test more careful, not blind; if all are zero, p is 1. Differences are rounded to 12 digits of the figures' size
    first, so that equal ones tie in spite of rounding. For up to 50 pairs that differ p is exact, whatever ties there
    are; beyond that the statistic is taken as normal, with ties corrected for.

    Args:
        differences: of figures.
        size: of the largest figure.

    Returns:
        None for fewer than two differences.
    """
    from scipy.stats import rankdata, wilcoxon

    d = without_dust(differences, size)
    if len(d) < 2:
        return None
    if not d.any():
        return 1.0
    if np.count_nonzero(d) <= EXACT_PAIRS:
        differing = d[d != 0]
        return _signs_as_far(rankdata(np.abs(differing)), np.sign(differing), len(d) - len(differing))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ties make the normal approximation be used; it corrects for them
        return min(1.0, float(wilcoxon(d, zero_method="pratt").pvalue))


def _signs_as_far(ranks: Values, signs: Values, zeros: int) -> float:
    """The probability that ranks whose signs are drawn have a sum as far from 0 as with these signs.

    Args:
        ranks: of the pairs that differ, among themselves [k]; each is higher by the zeros, which rank below.
        signs: −1 or 1 [k].
        zeros: number of equal pairs.
    """
    steps = np.rint(2 * ranks).astype(int)  # ranks of ties are halves
    middle, pairs = int(steps.sum()), len(steps)
    chances = np.zeros((pairs + 1, 2 * middle + 1))  # by how many signs are positive, and by the sum of signed steps
    chances[0, middle] = 1.0
    for step in steps.tolist():
        further = np.zeros_like(chances)
        further[1:, step:] += chances[:-1, :-step] / 2
        further[:, :-step] += chances[:, step:] / 2
        chances = further
    balance = 2 * np.arange(pairs + 1) - pairs
    sums = np.abs(2 * zeros * balance[:, None] + np.arange(-middle, middle + 1))
    found = abs(round(float(2 * zeros * signs.sum() + steps @ signs)))
    return min(1.0, float(chances[sums >= found].sum()))


def smallest_p(pairs: int) -> float:
    """The smallest p-value the two-sided signed-rank test can give for so many pairs: 2 / 2ⁿ."""
    return min(1.0, 2.0 ** (1 - pairs))


def bootstrap_interval(
    differences: Sequence[float] | Values, rng: np.random.Generator, level: float = 0.95, size: float = 1.0
) -> tuple[float, float] | None:
    """Bootstrap interval of the mean (BCa, Efron 1987; for very many values the percentile interval).

    Args:
        differences: of figures.
        rng: draws the samples.
        level: of confidence.
        size: of the largest figure, beside which rounding is told from a difference.

    Returns:
        (low, high); both the mean itself if all differences are equal; None for fewer than two.
    """
    from scipy.stats import bootstrap

    d = without_dust(differences, size)
    if len(d) < 2:
        return None
    if (d == d[0]).all():
        return float(d[0]), float(d[0])
    for method in ("BCa", "percentile") if len(d) <= LARGE else ("percentile",):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a degenerate BCa interval is NaN, and the next method is taken
            interval = bootstrap(
                (d,),
                np.mean,
                n_resamples=RESAMPLES,
                batch=max(1, _BATCH // len(d)),
                confidence_level=level,
                method=method,
                random_state=rng,
            ).confidence_interval
        if np.isfinite([interval.low, interval.high]).all():
            return float(interval.low), float(interval.high)
    return None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction for several tests (Holm 1979); None stays None and is not counted.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    tests = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for done, (p, place) in enumerate(tests):
        largest = max(largest, min(1.0, (len(tests) - done) * p))
        adjusted[place] = largest
    return adjusted


@dataclass(frozen=True)
class Difference:
    """A method's per-client figures (accuracies, errors, …) minus the reference's.

    Attributes:
        mean: over clients and seeds.
        std: sample std of the seeds' mean differences; None for a single seed.
        low, high: 95 % bootstrap interval of the mean over client pairs; None for fewer than two pairs.
        p_clients: signed-rank test over client pairs.
        p_seeds: signed-rank test over the seeds' mean differences; None for a single seed.
        pairs: number of client pairs.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None
    p_clients: float | None
    p_seeds: float | None
    pairs: int

    def to_dict(self) -> dict[str, Any]:
        """The attributes by name."""
        return dict(vars(self))


def paired_difference(
    method: Sequence[Values], reference: Sequence[Values], *, same_clients: bool, rng: np.random.Generator
) -> Difference:
    """Compare two methods run on the same seeds.

    Args:
        method: per seed, the figure of every client [C]; NaN where it is not defined, which leaves the pair out.
        reference: the same of the reference, clients in the same order.
        same_clients: whether client i is the same one for every seed (its own data, a client column). Then its
            differences are averaged over seeds before they are tested, since repeating a client adds no clients;
            else every seed has dealt the data to other clients, and all of them are pairs.
        rng: draws the bootstrap.
    """
    by_seed = [np.asarray(a) - np.asarray(b) for a, b in zip(method, reference, strict=True)]
    known = [~np.isnan(d) for d in by_seed]
    means = [float(d[there].mean()) for d, there in zip(by_seed, known, strict=True) if there.any()]
    if not means:
        return Difference(math.nan, None, None, None, None, None, 0)
    if same_clients:
        pairs = np.nanmean(np.stack(by_seed)[:, np.any(known, axis=0)], axis=0)
    else:
        pairs = np.concatenate(by_seed)[np.concatenate(known)]
    size = max(float(np.nanmax(np.abs(values), initial=0.0)) for values in (*method, *reference))
    interval = bootstrap_interval(pairs, rng, size=size)
    return Difference(
        mean=float(pairs.mean()),  # of the same pairs as the interval; that of the seeds', but where some are left out
        std=spread(means)["std"],
        low=interval and interval[0],
        high=interval and interval[1],
        p_clients=wilcoxon_p(pairs, size),
        p_seeds=wilcoxon_p(means, size),
        pairs=len(pairs),
    )
