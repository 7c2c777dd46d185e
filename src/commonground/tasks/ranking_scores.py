"""The area under the ROC curve: of single sets of rows exactly, of many sets together from counts in bins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commonground.tasks.fine import share

__all__ = [
    "MOST_CLASSES",
    "auc_of_bins",
    "auc_of_sets",
    "binned",
    "bins_of",
    "log_odds",
    "log_odds_of_classes",
    "mean_auc",
]

Floats = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]
Owner = npt.NDArray[np.int64]

MOST_CLASSES = 100  # beyond, an area for each class is no figure that anybody waits for
_NUMBERS = 1 << 14  # bins of all classes together, as far as that leaves each of them _FEWEST to _MOST
_FEWEST, _MOST = 128, 1 << 14
_WIDEST = 16.0  # log-odds beyond which probabilities are one bin: 1e-7 from 0 or 1
_EQUAL = 5  # decimals of log-odds: engines differ beyond, and what is equal in one is to be a tie in all


def log_odds(probabilities: Floats, others: Floats | None = None) -> Floats:
    """ln(p/(1 − p)), rounded; finite for 0 and 1 as well.

    Args:
        probabilities: p.
        others: 1 − p, where it is known in more digits than p near 1 has.
    """
    tiny = np.finfo(np.float64).tiny
    rest = np.maximum(1 - probabilities, np.finfo(np.float64).eps) if others is None else np.maximum(others, tiny)
    return np.round(np.log(np.maximum(probabilities, tiny)) - np.log(rest), _EQUAL)


def log_odds_of_classes(probabilities: Floats) -> Floats:
    """[rows, classes] the log-odds of each class against all others, from probabilities whose rows add up to 1."""
    others = np.zeros_like(probabilities)
    others[:, 1:] = np.cumsum(probabilities, axis=1)[:, :-1]
    others[:, :-1] += np.cumsum(probabilities[:, ::-1], axis=1)[:, ::-1][:, 1:]
    return log_odds(probabilities, others)


def auc_of_sets(scores: Floats, positive: Marks, owner: Owner, sets: int) -> Floats:
    """[sets] the share of pairs of a positive and another row in which the former has the larger score, ties counting
    half; NaN for sets without a pair.

    Args:
        scores: [rows].
        positive: [rows].
        owner: [rows] the set of each row.
        sets: how many there are.
    """
    order = np.lexsort((scores, owner))
    s, o, p = scores[order], owner[order], positive[order]
    sizes = np.bincount(owner, minlength=sets)
    first = np.flatnonzero(np.concatenate([[True], (s[1:] != s[:-1]) | (o[1:] != o[:-1])])[: len(s)])
    ties = np.diff(np.append(first, len(s)))
    rank = np.repeat(first + (ties + 1) / 2, ties) - (np.cumsum(sizes) - sizes)[o]  # the mean one of equal rows
    positives = np.bincount(owner, positive, minlength=sets)
    pairs = positives * (sizes - positives)
    above = np.bincount(o, rank * p, minlength=sets) - positives * (positives + 1) / 2
    return np.where(pairs > 0, above / np.where(pairs > 0, pairs, 1.0), np.nan)


def mean_auc(scores: Floats, positive: Marks, owner: Owner, sets: int) -> Floats:
    """[sets] the mean over columns of :func:`auc_of_sets`, of those that are defined; NaN where none is.

    Args:
        scores: [rows, columns].
        positive: [rows, columns].
        owner, sets: as there.
    """
    total, known = np.zeros(sets), np.zeros(sets)
    for column in range(scores.shape[1]):
        area = auc_of_sets(scores[:, column], positive[:, column], owner, sets)
        total += np.nan_to_num(area)
        known += ~np.isnan(area)
    return share(total, known)


def bins_of(classes: int) -> int:
    """Bins of the log-odds of each of so many classes."""
    return min(max(_FEWEST, _NUMBERS // classes), _MOST)


def binned(scores: Floats, positive: Marks) -> Floats:
    """[classes, 2, bins] how many rows are not and are of each class, by bins of their log-odds.

    Args:
        scores: [rows, classes] log-odds.
        positive: [rows, classes].
    """
    classes, bins = scores.shape[1], bins_of(scores.shape[1])
    place = np.clip(np.floor((scores + _WIDEST) * (bins / (2 * _WIDEST))).astype(np.int64), 0, bins - 1)
    cell = (np.arange(classes) * 2 + positive) * bins + place
    return np.bincount(cell.ravel(), minlength=classes * 2 * bins).astype(np.float64).reshape(classes, 2, bins)


def auc_of_bins(counts: Floats) -> tuple[float, float]:
    """The mean over classes of the area under the ROC curve, and how far it can be off: rows of one bin count as ties.

    Args:
        counts: as of :func:`binned`, added up over sets of rows.

    Returns:
        Both; NaN where no class has rows of its own and others.
    """
    others, own = counts[:, 0], counts[:, 1]
    pairs = own.sum(1) * others.sum(1)
    known = pairs > 0
    if not known.any():
        return float("nan"), float("nan")
    below = np.cumsum(others, axis=1) - others
    area = (own * (below + others / 2)).sum(1)[known] / pairs[known]
    within = (own * others / 2).sum(1)[known] / pairs[known]
    return float(area.mean()), float(within.mean())
