"""How many samples of each class clients have, all at once and some clients after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from commonground import FederatedDataset
from commonground.data.class_counts import class_totals, classes_held

SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


def uneven() -> FederatedDataset:
    """Clients with one to three training samples, in no order; the second has no test sample of class 0."""
    y = np.array([0, 1, 2, 2, 0, 1, 1])
    x = np.zeros((7, 2), dtype=np.float32)
    return FederatedDataset(
        name="uneven", x_train=x, y_train=y, x_test=x, y_test=y, classes=3, class_names=("a", "b", "c"),
        train_index=np.array([6, 0, 5, 2, 3, 1]), train_offsets=np.array([0, 1, 4, 6]),
        test_index=np.array([4, 1, 6, 0]), test_offsets=np.array([0, 1, 3, 4]),
    )  # fmt: skip


def test_by_hand() -> None:
    data = uneven()
    assert data.class_counts().tolist() == [[0, 1, 0], [1, 1, 1], [0, 1, 1]]
    assert data.class_counts("test").tolist() == [[1, 0, 0], [0, 2, 0], [1, 0, 0]]
    assert class_totals(data.class_counts_in_parts()).tolist() == [1, 3, 2]
    assert class_totals(data.class_counts_in_parts("test")).tolist() == [2, 2, 0]
    assert classes_held(data.class_counts_in_parts()).tolist() == [1, 3, 2]


@pytest.mark.parametrize("part", [1, 2, 3, 10])
def test_parts_are_the_whole(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, labels = np.zeros((12, 2), dtype=np.float32), (rng.random((12, 4)) < 0.5).astype(np.float32)
    rows = [slice(start, start + 3) for start in range(0, 12, 3)]
    many = FederatedDataset.from_arrays([(x[r], labels[r], x[r], labels[r]) for r in rows], task="multilabel")
    for data in (uneven(), many, replace(uneven(), described=True)):
        wholes = {split: data.class_counts(split) for split in SPLITS}
        monkeypatch.setattr("commonground.data.class_counts.PART", part)
        for split in SPLITS:
            whole, parts = wholes[split], list(data.class_counts_in_parts(split))
            assert whole.shape == (data.clients, data.classes)
            assert max(map(len, parts)) <= part
            assert np.concatenate(parts).tolist() == whole.tolist()
            assert class_totals(parts).tolist() == whole.sum(0).tolist()
            assert classes_held(parts).tolist() == (whole > 0).sum(1).tolist()
        monkeypatch.undo()
