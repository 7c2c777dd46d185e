"""What several labels are judged by beside F1 over all of them, from each label's probability."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from commonground.tasks.bounds import Bounds, Figures
from commonground.tasks.class_figures import macro_f1
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
from commonground.tasks.ranking_scores import MOST_CLASSES, auc_of_bins, binned, bins_of, log_odds, mean_auc

__all__ = ["LabelFigures"]


class LabelFigures(FineFigures):
    """Figures of labels: ``macro_f1`` (mean over the labels that are there or are said to be), ``auc`` (mean over
    labels of the area under the ROC curve, for at most 100 of them), ``log_loss`` and ``calibration_error`` (both over
    all labels of all rows).

    Of all rows as one set, all are exact but ``auc``, which is made of counts in bins of log-odds.
    """

    names = ("macro_f1", "auc", "log_loss", "calibration_error")

    def of_rows(self, output: Tensor, y: Tensor) -> dict[str, Array]:
        return {"p": output.cpu().double().sigmoid().numpy(), "y": (y > 0).cpu().numpy()}

    def told(self, rows: Mapping[str, Array], owner: Owner, sets: int) -> tuple[Figures, Counts]:
        return self._of_sets(rows, owner, sets), self._counts(rows)

    def _of_sets(self, rows: Mapping[str, Array], owner: Owner, sets: int) -> Figures:
        p, y = rows["p"], rows["y"]
        ranked = p.shape[1] if p.shape[1] <= MOST_CLASSES else 0
        cells = sums_of(np.full(len(p), p.shape[1]), owner, sets)
        loss = sums_of(_log_losses(rows).sum(1), owner, sets)
        return {
            "macro_f1": macro_f1(_confusion(rows, owner, sets)),
            "auc": mean_auc(log_odds(p[:, :ranked]), y[:, :ranked], owner, sets),
            "log_loss": share(loss, cells),
            "calibration_error": share(np.abs(_gaps(rows, owner, sets)).sum(1), cells),
        }

    def _counts(self, rows: Mapping[str, Array]) -> Counts:
        one, p = np.zeros(len(rows["p"]), dtype=np.int64), rows["p"]
        found = {
            "confusion": _confusion(rows, one, 1)[0],
            "log_loss": np.array(_log_losses(rows).mean(1).sum()),
            "calibration": _gaps(rows, one, 1)[0] / p.shape[1],
            "rows": np.array(float(len(p))),
        }
        return {**found, "scores": binned(log_odds(p), rows["y"])} if p.shape[1] <= MOST_CLASSES else found

    def of_counts(self, counts: Counts) -> dict[str, float]:
        rows = counts["rows"]
        return {
            "macro_f1": float(macro_f1(counts["confusion"][None])[0]),
            "auc": auc_of_bins(counts["scores"])[0] if "scores" in counts else float("nan"),
            "log_loss": float(counts["log_loss"] / rows),
            "calibration_error": float(np.abs(counts["calibration"]).sum() / rows),
        }

    def within(self, counts: Counts) -> dict[str, float]:
        return {"auc": auc_of_bins(counts["scores"])[1]} if "scores" in counts else {}

    def bounds(self, outputs: int) -> dict[str, Bounds]:
        found = {
            "confusion": Bounds(0, 1, True, (3, outputs)),
            "log_loss": Bounds(0, -float(np.log(SMALLEST)) + 1e-6),
            "calibration": Bounds(-1, 1, shape=(BINS,)),
            "rows": Bounds(1, 1, True),
        }
        scores = Bounds(0, 1, True, (outputs, 2, bins_of(outputs)))
        return {**found, "scores": scores} if outputs <= MOST_CLASSES else found


def _confusion(rows: Mapping[str, Array], owner: Owner, sets: int) -> Floats:
    """[sets, 3, labels] rows that have each label, rows that are said to, and rows of which both is so."""
    y, said = rows["y"], rows["p"] >= 0.5
    found = np.zeros((sets, 3, y.shape[1]))
    for place, marks in enumerate((y, said, y & said)):
        np.add.at(found[:, place], owner, marks.astype(np.float64))
    return found


def _log_losses(rows: Mapping[str, Array]) -> Floats:
    right = np.where(rows["y"], rows["p"], 1 - rows["p"])
    losses: Floats = -np.log(np.clip(right, SMALLEST, 1.0))
    return losses


def _gaps(rows: Mapping[str, Array], owner: Owner, sets: int) -> Floats:
    p, labels = rows["p"], rows["p"].shape[1]
    right = (p >= 0.5) == rows["y"]
    return calibration_gaps(np.maximum(p, 1 - p).ravel(), right.ravel(), np.repeat(owner, labels), sets)
