"""How many samples of each class clients have; of very many clients without a number for each of them and class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Array, Indices
from commonground.tasks import Task

__all__ = ["class_counts_in_parts", "class_totals", "classes_held"]

PART = 10_000  # clients whose samples are counted at once


def class_counts_in_parts(task: Task, classes: int, y: Array, index: Indices, offsets: Indices) -> Iterator[Indices]:
    """Samples per client and class (label, target), int64 [clients, classes], of ten thousand clients after the other.

    Args:
        task: says which classes a target is of.
        classes: how many there are.
        y: targets in their stored form.
        index, offsets: the clients' rows of them (:class:`~commonground.data.federated.FederatedDataset`).
    """
    label = task.label_of(y)
    for start in range(0, len(offsets) - 1, PART):
        among = offsets[start : start + PART + 1]
        shape = (len(among) - 1, classes)
        rows, owner = index[among[0] : among[-1]], np.repeat(np.arange(shape[0]), np.diff(among))
        if label is not None:
            yield np.bincount(owner * classes + label[rows], minlength=math.prod(shape)).reshape(shape)
            continue
        counts = np.zeros(shape, dtype=np.int64)
        np.add.at(counts, owner, task.members(y[rows], classes).astype(np.int64))
        yield counts


def class_totals(parts: Iterable[Indices]) -> Indices:
    """Samples per class over all clients, int64 [classes].

    Args:
        parts: of :meth:`~commonground.data.federated.FederatedDataset.class_counts_in_parts`.
    """
    totals: Indices = np.sum([counts.sum(0) for counts in parts], axis=0, dtype=np.int64)
    return totals


def classes_held(parts: Iterable[Indices]) -> npt.NDArray[np.int32]:
    """Classes (labels, targets) of which a client has samples, [clients].

    Args:
        parts: as of :func:`class_totals`.
    """
    return np.concatenate([(counts > 0).sum(1, dtype=np.int32) for counts in parts])
