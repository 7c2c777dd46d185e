"""One class for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor

from commonground.errors import DataError
from commonground.tasks.base import Array, Bounds, Task
from commonground.tasks.class_figures import ClassFigures

__all__ = ["CLASSIFICATION", "Classification", "class_numbers", "largest_class"]

_MOST_CLASSES = 1_000_000  # unless asked for: more are rather identifiers than classes


@dataclass(frozen=True)
class Classification(Task):
    """Classes 0 … m − 1: cross-entropy, and accuracy, the share of samples whose largest output is their class's."""

    name = "classification"
    softmax = True

    def targets(self, values: Array, field: str) -> Array:
        return class_numbers(values, field)

    def neutral_targets(self, rows: int, outputs: int) -> Array:
        return np.zeros(rows, dtype=np.int64)

    def outputs(self, targets: Sequence[Array], name: str) -> int:
        return largest_class(targets, name) + 1

    def check_targets(self, name: str, split: str, targets: Array, outputs: int) -> None:
        for row in np.flatnonzero((targets < 0) | (targets >= outputs))[:1]:
            raise DataError(
                f"the label of {split} sample {row} of {name!r} is {targets[row]}; "
                f"with {outputs} classes it must be 0 to {outputs - 1}"
            )

    def members(self, targets: Array, outputs: int) -> npt.NDArray[np.bool_]:
        there: npt.NDArray[np.bool_] = targets[:, np.newaxis] == np.arange(outputs)
        return there

    def label_of(self, targets: Array) -> npt.NDArray[np.int64]:
        return targets

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="none")

    def mean_loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y)  # one operation in place of two

    def scores(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"accuracy": output.argmax(1) == y}

    def score_bounds(self, outputs: int) -> dict[str, Bounds]:
        return {"accuracy": Bounds(0, 1, whole=True)}

    @property
    def fine(self) -> ClassFigures:
        return ClassFigures()

    def interpret(self, output: Tensor) -> Tensor:
        return output.softmax(1)

    def table(self, predicted: npt.NDArray[np.float64], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
        chosen = self.choose(predicted, names)
        rows = [[answer, f"{row.max():.6f}"] for answer, row in zip(chosen, predicted, strict=True)]
        return ["class", "probability"], rows


CLASSIFICATION = Classification()
"""The task of data that name none."""


def class_numbers(values: Array, field: str) -> npt.NDArray[np.int64]:
    """Whole numbers as int64 [N].

    Raises:
        DataError: they are no row of whole numbers.
    """
    values = np.asarray(values)
    if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
        numbers = np.issubdtype(values.dtype, np.floating)
        more = '; numbers to be predicted are for task="regression"' if numbers else ""
        raise DataError(f"{field} is {values.dtype} of shape {values.shape}; one row of whole numbers is needed{more}")
    return np.ascontiguousarray(values, dtype=np.int64)


def largest_class(targets: Sequence[Array], name: str) -> int:
    """The largest class number there is; 0 if there are no samples.

    Raises:
        DataError: it is so large that the numbers are rather identifiers.
    """
    largest = max((int(y.max()) for y in targets if y.size), default=0)
    if largest >= _MOST_CLASSES:
        raise DataError(f"the largest label of {name!r} is {largest}; number the classes from 0, or give classes=")
    return largest
