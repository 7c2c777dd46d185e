"""Whether one column alone says what is to be predicted, as one that is filled in afterwards does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commonground.data.tables.cells import Cells, Floats
from commonground.data.tables.kinds import Column

__all__ = ["determines"]

_MOST_ROWS = 20_000
_FEWEST = 50  # rows below which nothing is said
_NEARLY_ALL = 0.999


def determines(column: Column, y: Cells, task: str) -> bool:
    """Whether a feature gives the target away: nearly all of it, where nothing would give much less.

    For classes, by a tree of as many leaves as twice the classes (numbers, each leaf of 5 rows at least), or by the
    most frequent class of each category; for numbers, by a correlation of their ranks above 0.9999.

    Args:
        column: the feature.
        y: the target's words.
        task: ``classification`` or ``regression``.
    """
    known = y.codes >= 0
    if column.numbers is not None:
        known = known & ~np.isnan(column.numbers)
    rows = np.flatnonzero(known)
    rows = rows[:: max(1, len(rows) // _MOST_ROWS)]
    if len(rows) < _FEWEST:
        return False
    if task == "regression":
        return column.numbers is not None and _same_order(column.numbers[rows], y.numbers("point")[y.codes[rows]])
    target = y.codes[rows]
    most = np.bincount(target).max() / len(rows)
    if most > 0.99:
        return False
    if column.numbers is None:
        assert column.cells is not None
        return _by_category(column.cells.codes[rows] + 1, target) > _NEARLY_ALL
    x, leaves = column.numbers[rows], 2 * len(y.words)
    if 1 - _fewest_mistakes(x, target, leaves) / len(rows) <= _NEARLY_ALL:
        return False
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(max_leaf_nodes=leaves, min_samples_leaf=5, random_state=0)
    return bool(tree.fit(x[:, np.newaxis], target).score(x[:, np.newaxis], target) > _NEARLY_ALL)


def _fewest_mistakes(x: Floats, target: npt.NDArray[np.int64], leaves: int) -> float:
    """A bound from below on what any tree of so many leaves gets wrong, without growing one.

    Along x the target has R runs of equal classes, and a tree cuts x into at most that many stretches. In one of k runs
    at most every second run is of its most frequent class, so that ⌊k/2⌋ ≥ (k − 1)/2 rows are wrong: (R − leaves)/2
    in all.
    """
    along = target[np.lexsort((target, x))]
    runs = 1 + np.count_nonzero(along[1:] != along[:-1])
    return (runs - leaves) / 2


def _by_category(codes: npt.NDArray[np.int64], target: npt.NDArray[np.int64]) -> float:
    """The share of rows that are of their category's most frequent class, among categories of several rows."""
    counts = np.zeros((codes.max() + 1, target.max() + 1), dtype=np.int64)
    np.add.at(counts, (codes, target), 1)
    several = counts[counts.sum(axis=1) >= 5]
    return float(several.max(axis=1).sum() / max(1, counts.sum()))


def _same_order(x: Floats, y: Floats) -> bool:
    from scipy.stats import rankdata

    if np.isnan(y).any() or x.std() == 0 or y.std() == 0:
        return False
    return bool(abs(np.corrcoef(rankdata(x), rankdata(y))[0, 1]) > 0.9999)
