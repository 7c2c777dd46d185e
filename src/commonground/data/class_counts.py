"""How many samples of each class clients have; of very many clients without a number for each of them and class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Indices
from commonground.errors import DataError

if TYPE_CHECKING:
    from commonground.data.federated import FederatedDataset

__all__ = ["class_counts", "class_counts_in_parts", "class_totals", "classes_held"]

PART = 10_000  # clients whose samples are counted at once

Counted = Literal["train", "test"]


def class_counts(data: FederatedDataset, split: Counted = "train", clients: range | None = None) -> Indices:
    """Samples per client and class (label, target), int64 [clients, classes].

    Args:
        data: the clients' samples.
        split: of which rows.
        clients: neighbours (default: all).
    """
    if split == "train":
        y, index, offsets = data.y_train, data.train_index, data.train_offsets
    elif split == "test":
        y, index, offsets = data.y_test, data.test_index, data.test_offsets
    else:
        raise DataError(f"A split is 'train' or 'test', not {split!r}")
    among = range(data.clients) if clients is None else clients
    shape = (len(among), data.classes)
    if data.described:
        return np.zeros(shape, dtype=np.int64)
    offsets = offsets[among.start : among.stop + 1]
    index, owner = index[offsets[0] : offsets[-1]], np.repeat(np.arange(len(among)), np.diff(offsets))
    label = data.task.label_of(y)
    if label is not None:
        return np.bincount(owner * data.classes + label[index], minlength=math.prod(shape)).reshape(shape)
    counts = np.zeros(shape, dtype=np.int64)
    np.add.at(counts, owner, data.task.members(y[index], data.classes).astype(np.int64))
    return counts


def class_counts_in_parts(data: FederatedDataset, split: Counted = "train") -> Iterator[Indices]:
    """As :func:`class_counts`, of some thousand clients after the other."""
    for start in range(0, data.clients, PART):
        yield class_counts(data, split, range(start, min(start + PART, data.clients)))


def class_totals(data: FederatedDataset, split: Counted = "train") -> Indices:
    """Samples per class over all clients, int64 [classes]."""
    totals = np.zeros(data.classes, dtype=np.int64)
    for counts in class_counts_in_parts(data, split):
        totals += counts.sum(0)
    return totals


def classes_held(data: FederatedDataset) -> npt.NDArray[np.int32]:
    """Classes (labels, targets) of which a client has training samples, [clients]."""
    return np.concatenate([(counts > 0).sum(1, dtype=np.int32) for counts in class_counts_in_parts(data)])
