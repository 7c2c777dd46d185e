"""What classes are judged by beside accuracy, from probabilities; all sets of rows at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

from commonground.tasks.bounds import Bounds, Figures
from commonground.tasks.fine import (
    BINS,
    SMALLEST,
    Array,
    Counts,
    FineFigures,
    Floats,
    Owner,
    calibration_gaps,
    share,
    sums_of,
)
from commonground.tasks.ranking_scores import (
    MOST_CLASSES,
    Marks,
    auc_of_bins,
    binned,
    bins_of,
    log_odds_of_classes,
    mean_auc,
)

__all__ = ["ClassFigures", "class_figures", "macro_f1"]


class ClassFigures(FineFigures):
    """Figures of classes; each is scikit-learn's of the same rows where that is defined.

    ``balanced_accuracy`` (mean recall over the classes that are there), ``f1`` (macro: the mean over the classes that
    are there or are said to be), ``auc`` (mean over the classes that are there of the area under the ROC curve of one
    class against the rest; of two classes simply theirs; for at most 100 classes), ``log_loss`` and
    ``calibration_error`` (expected, 15 bins of confidence).

    Of all rows as one set, all are exact but ``auc``, which is made of counts in bins of log-odds. Rows rank by their
    log-odds in five decimals: what differs by less is a tie, and what is so near 1 that scikit-learn's probabilities
    are equal is none.
    """

    names = ("balanced_accuracy", "f1", "auc", "log_loss", "calibration_error")

    def of_rows(self, output: Tensor, y: Tensor) -> dict[str, Array]:
        return {"p": output.cpu().double().softmax(1).numpy(), "y": y.cpu().numpy()}

    def told(self, rows: Mapping[str, Array], owner: Owner, sets: int) -> tuple[Figures, Counts]:
        return self._of_sets(rows, owner, sets), self._counts(rows)

    def _of_sets(self, rows: Mapping[str, Array], owner: Owner, sets: int) -> Figures:
        y, p = rows["y"], rows["p"]
        sizes = np.bincount(owner, minlength=sets).astype(np.float64)
        gaps = calibration_gaps(p.max(1), p.argmax(1) == y, owner, sets)
        return {
            **_of_confusion(_confusion(y, p, owner, sets)),
            "auc": mean_auc(*_ranked(y, p), owner, sets),
            "log_loss": share(sums_of(_log_loss(y, p), owner, sets), sizes),
            "calibration_error": share(np.abs(gaps).sum(1), sizes),
        }

    def _counts(self, rows: Mapping[str, Array]) -> Counts:
        y, p = rows["y"], rows["p"]
        one = np.zeros(len(y), dtype=np.int64)
        found = {
            "confusion": _confusion(y, p, one, 1)[0],
            "log_loss": np.array(_log_loss(y, p).sum()),
            "calibration": calibration_gaps(p.max(1), p.argmax(1) == y, one, 1)[0],
        }
        odds, own = _ranked(y, p)
        return {**found, "scores": binned(odds, own)} if odds.shape[1] else found

    def of_counts(self, counts: Counts) -> dict[str, float]:
        rows = counts["confusion"][0].sum()
        plain = _of_confusion(counts["confusion"][None])
        return {
            **{name: float(value[0]) for name, value in plain.items()},
            "auc": auc_of_bins(counts["scores"])[0] if "scores" in counts else float("nan"),
            "log_loss": float(counts["log_loss"] / rows),
            "calibration_error": float(np.abs(counts["calibration"]).sum() / rows),
        }

    def within(self, counts: Counts) -> dict[str, float]:
        return {"auc": auc_of_bins(counts["scores"])[1]} if "scores" in counts else {}

    def bounds(self, outputs: int) -> dict[str, Bounds]:
        classes = len(_ranked_classes(outputs))
        found = {
            "confusion": Bounds(0, 1, True, (3, outputs)),
            "log_loss": Bounds(0, -float(np.log(SMALLEST)) + 1e-6),
            "calibration": Bounds(-1, 1, shape=(BINS,)),
        }
        return {**found, "scores": Bounds(0, 1, True, (classes, 2, bins_of(classes)))} if classes else found


def class_figures(y: npt.NDArray[np.int64], probabilities: Floats, owner: Owner, sets: int) -> Figures:
    """:class:`ClassFigures` of sets of rows.

    Args:
        y: classes [N], 0 … m − 1.
        probabilities: [N, m], rows that add up to 1.
        owner: [N] the set of each row.
        sets: how many there are.
    """
    return ClassFigures().told({"y": y, "p": probabilities}, owner, sets)[0]


def _confusion(y: npt.NDArray[np.int64], p: Floats, owner: Owner, sets: int) -> Floats:
    """[sets, 3, classes] rows that are of each class, rows that are said to be, and rows of which both is so."""
    said, classes = p.argmax(1), p.shape[1]
    parts = [(owner, y), (owner, said), (owner[said == y], y[said == y])]
    found = [np.bincount(o * classes + c, minlength=sets * classes).reshape(sets, classes) for o, c in parts]
    return np.stack(found, axis=1).astype(np.float64)


def _of_confusion(confusion: Floats) -> Figures:
    """Balanced accuracy of each set, over the classes that are there, and its macro F1."""
    there, right = confusion[:, 0], confusion[:, 2]
    present = there > 0
    count = present.sum(1).astype(np.float64)
    recall = np.where(present, share(right, there), 0.0)
    return {"balanced_accuracy": share(recall.sum(1), count), "f1": macro_f1(confusion)}


def macro_f1(confusion: Floats) -> Floats:
    """[sets] the mean F1 over the classes or labels that are there or are said to be: one that is only said is wrong
    each time, and counts as 0.

    Args:
        confusion: [sets, 3, classes] rows that are of each, rows that are said to be, and rows of which both is so.
    """
    there, said, right = confusion[:, 0], confusion[:, 1], confusion[:, 2]
    return share((2 * right / np.maximum(there + said, 1)).sum(1), (there + said > 0).sum(1).astype(np.float64))


def _log_loss(y: npt.NDArray[np.int64], p: Floats) -> Floats:
    own: Floats = -np.log(np.clip(p[np.arange(len(y)), y], SMALLEST, 1.0))
    return own


def _ranked_classes(classes: int) -> npt.NDArray[np.int64]:
    """The classes of which an area is computed: of two the second, whose area is that of the first as well."""
    return np.arange(1, 2) if classes == 2 else np.arange(classes if classes <= MOST_CLASSES else 0)


def _ranked(y: npt.NDArray[np.int64], p: Floats) -> tuple[Floats, Marks]:
    """[rows, classes] the log-odds of the classes of which an area is computed, and which rows are of them."""
    classes = _ranked_classes(p.shape[1])
    odds = log_odds_of_classes(p)[:, classes] if len(classes) else p[:, classes]
    return odds, y[:, None] == classes
