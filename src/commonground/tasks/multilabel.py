"""Any number of labels for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from commonground.devices import wide
from commonground.errors import DataError
from commonground.tasks.base import Array, Bounds, Figures, Task, check_width, real_targets
from commonground.tasks.label_figures import LabelFigures

__all__ = ["MultiLabel"]


@dataclass(frozen=True)
class MultiLabel(Task):
    """A set of labels, as zeros and ones [m]: binary cross-entropy, averaged over the labels.

    Metrics: ``f1`` (micro: 2·TP/(2·TP + FP + FN) over all labels of a set of samples; not defined where nothing is
    there and nothing predicted), ``label_accuracy`` (share of labels that are right) and ``subset_accuracy`` (share of
    samples whose labels are all right). A label is predicted where its probability is at least one half.
    """

    name = "multilabel"
    metric = "f1"
    counted = "labels"

    def targets(self, values: Array, field: str) -> Array:
        return real_targets(values, field)

    def outputs(self, targets: Sequence[Array], name: str) -> int:
        return int(targets[0].shape[1])

    def check_targets(self, name: str, split: str, targets: Array, outputs: int) -> None:
        check_width(name, split, targets, outputs, self.counted)
        for row in np.flatnonzero(((targets != 0) & (targets != 1)).any(axis=1))[:1]:
            raise DataError(f"the labels of {split} sample {row} of {name!r} are not zeros and ones")

    def members(self, targets: Array, outputs: int) -> npt.NDArray[np.bool_]:
        there: npt.NDArray[np.bool_] = targets > 0
        return there

    def as_tensor(self, targets: Array, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(targets).to(dtype)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, y, reduction="none").mean(1)

    def scores(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        there, said = y > 0, output >= 0
        return {
            "true": wide(there & said).sum(1),
            "wrong": wide(there ^ said).sum(1),
            "label_accuracy": wide(there == said).mean(1),
            "subset_accuracy": (there == said).all(1),
        }

    def score_bounds(self, outputs: int) -> dict[str, Bounds]:
        labels, right = Bounds(0, outputs, whole=True), Bounds(0, 1, whole=True)
        return {"true": labels, "wrong": labels, "label_accuracy": Bounds(0, 1), "subset_accuracy": right}

    def metrics(self, means: Mapping[str, npt.NDArray[np.float64]]) -> Figures:
        twice = 2 * means["true"]
        whole = twice + means["wrong"]
        f1 = np.where(whole > 0, twice / np.where(whole > 0, whole, 1.0), np.nan)
        return {"f1": f1, "label_accuracy": means["label_accuracy"], "subset_accuracy": means["subset_accuracy"]}

    @property
    def plain(self) -> tuple[str, ...]:
        return ("f1", "label_accuracy", "subset_accuracy")

    @property
    def fine(self) -> LabelFigures:
        return LabelFigures()

    def interpret(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def choose(self, predicted: npt.NDArray[np.float64], names: Sequence[str]) -> list[str]:
        return [", ".join(n for n, p in zip(names, row, strict=True) if p >= 0.5) or "–" for row in predicted]
