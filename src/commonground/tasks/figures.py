"""What classes are judged by beside accuracy, from probabilities, by scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BINS", "calibration_error", "class_figures"]

BINS = 15  # of confidence, for the calibration error
Probabilities = npt.NDArray[np.float64]
Classes = npt.NDArray[np.int64]


def class_figures(y: Classes, probabilities: Probabilities) -> dict[str, float]:
    """Figures of one set of samples; NaN where one is not defined.

    ``balanced_accuracy`` (mean recall over the classes that are there), ``f1`` (macro, over the same), ``auc`` (of the
    second of two classes; of more, the mean over one class against the rest, which needs all of them to be there),
    ``log_loss`` and ``calibration_error``.

    Args:
        y: classes [N], 0 … m − 1.
        probabilities: [N, m], rows that add up to 1.
    """
    from sklearn.metrics import f1_score, log_loss, recall_score

    there = np.unique(y)
    said = probabilities.argmax(axis=1)
    given: dict[str, Any] = {"labels": there, "average": "macro", "zero_division": 0.0}
    return {
        "balanced_accuracy": float(recall_score(y, said, **given)),
        "f1": float(f1_score(y, said, **given)),
        "auc": _auc(y, probabilities, there),
        "log_loss": float(log_loss(y, probabilities, labels=np.arange(probabilities.shape[1]))),
        "calibration_error": calibration_error(y, probabilities),
    }


def _auc(y: Classes, probabilities: Probabilities, there: Classes) -> float:
    from sklearn.metrics import roc_auc_score

    if len(there) < probabilities.shape[1]:
        return float("nan")
    if probabilities.shape[1] == 2:
        return float(roc_auc_score(y, probabilities[:, 1]))
    return float(roc_auc_score(y, probabilities, multi_class="ovr", average="macro"))


def calibration_error(y: Classes, probabilities: Probabilities) -> float:
    """The expected calibration error: |accuracy − confidence| in equal bins of confidence, weighted by their samples.

    Source: Guo et al. 2017, equation 3, with 15 bins.
    """
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == y
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(place, right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(y))
