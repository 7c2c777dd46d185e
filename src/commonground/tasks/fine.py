"""Figures of sets of samples that are no means of scores: what a run's last test and ``predict`` tell beside them.

Each is known of every client by itself, from its own rows, and of all rows as one set from sums over the clients
(:meth:`FineFigures.told`), so that a client never has to show a row of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from commonground.tasks.bounds import Bounds, Figures

__all__ = ["BINS", "SMALLEST", "Counts", "FineFigures", "OwnMetric", "calibration_gaps", "share", "sums_of"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Counts = Mapping[str, Floats]
Owner = npt.NDArray[np.int64]

BINS = 15  # of confidence, for the calibration error
SMALLEST = float(np.finfo(np.float64).eps)  # a probability in the log loss, as of scikit-learn

OwnMetric = Callable[[Array, Floats], Any]
"""From targets [n, …] as they are stored and predictions [n, columns] (probabilities, or numbers) to one number, or to
one number for each row; in the order of scikit-learn's metrics."""


class FineFigures(ABC):
    """Some figures of a task.

    Attributes:
        names: of the figures.
    """

    names: tuple[str, ...]

    @abstractmethod
    def of_rows(self, output: Tensor, y: Tensor) -> dict[str, Array]:
        """What the figures need of each row, by name, [rows, …] on the host.

        Args:
            output: [rows, …] of the model.
            y: targets.
        """

    @abstractmethod
    def told(self, rows: Mapping[str, Array], owner: Owner, sets: int) -> tuple[Figures, Counts]:
        """The figures of each set of rows, by name [sets], NaN where one is not defined; and sums over all rows, by
        name, from which the figures of all of them as one set follow.

        Args:
            rows: of all sets.
            owner: [rows] the set of each, from 0.
            sets: how many there are.
        """

    @abstractmethod
    def of_counts(self, counts: Counts) -> dict[str, float]:
        """The figures of all rows as one set, from :meth:`told`'s sums; NaN where one is not defined."""

    def within(self, counts: Counts) -> dict[str, float]:
        """Figures of :meth:`of_counts` that are not exact, and how far off they can be."""
        return {}

    @abstractmethod
    def bounds(self, outputs: int) -> dict[str, Bounds]:
        """What one row can add to each of :meth:`told`'s sums, whose shapes these are as well.

        Args:
            outputs: of the model.
        """


def share(part: Floats, whole: Floats) -> Floats:
    """Part by whole, NaN where the whole is 0."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)


def calibration_gaps(confidence: Floats, right: npt.NDArray[np.bool_], owner: Owner, sets: int) -> Floats:
    """[sets, BINS] sums of rightness less confidence, in equal bins of confidence.

    Their magnitudes, added up and divided by the number of rows, are the expected calibration error (Guo et al. 2017,
    equation 3).
    """
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps: Floats = sums_of(right - confidence, owner * BINS + place, sets * BINS).reshape(sets, BINS)
    return gaps


def sums_of(values: Array, owner: Owner, sets: int) -> Floats:
    """[sets] values [rows] added up, in the rows' order."""
    return np.bincount(owner, values, minlength=sets).astype(np.float64)
