"""A table's encoders, scales and targets' mean are learnt from rows that some client trains on, and from no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import commonground as cg
from commonground.data import FederatedDataset, hold_out, limit_samples
from commonground.data.validation import validation_split
from commonground.tasks import Regression

Cut = Callable[[FederatedDataset], FederatedDataset]


def table(path: Path, changed: npt.NDArray[np.int64] | None = None) -> Path:
    """Two clients of 60 rows, numbers, words and a target; of some rows all but the client is another one."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "who": np.repeat(["a", "b"], 60),
            "size": rng.normal(3, 2, 120),
            "ward": rng.choice(["icu", "er"], 120),
            "y": rng.permutation(120) / 8,
        }
    )
    if changed is not None:
        frame.loc[changed, ["size", "y"]] = frame.loc[changed, ["size", "y"]] * 50 + 700
        frame.loc[changed, "ward"] = "elsewhere"
    frame.to_csv(path, index=False)
    return path


def load(path: Path, partition: str | None = None) -> FederatedDataset:
    how: dict[str, Any] = {"client_column": "who"} if partition is None else {"partition": partition, "drop": "who"}
    return cg.load_data(str(path), None if partition is None else 2, label="y", task="regression", seed=1, **how)


def limited(data: FederatedDataset) -> FederatedDataset:
    return limit_samples(data, "train", 5, 0)


def held(data: FederatedDataset) -> FederatedDataset:
    return hold_out(data, 0.4, 0)


def both(data: FederatedDataset) -> FederatedDataset:
    return hold_out(limit_samples(data, "train", 20, 0), 0.4, 0)


def tuned(data: FederatedDataset) -> FederatedDataset:
    return validation_split(hold_out(data, 0.2, 0), 0.4, 1)


def tuned_and_held(data: FederatedDataset) -> FederatedDataset:
    return hold_out(validation_split(data, 0.4, 1), 0.2, 0)


@pytest.mark.parametrize("cut", [limited, held, both, tuned, tuned_and_held])
def test_rows_that_are_cut_off_teach_nothing(
    cut: Callable[[FederatedDataset], FederatedDataset], tmp_path: Path
) -> None:
    _compare(tmp_path, cut, None)


@pytest.mark.parametrize("cut", [lambda data: data, limited])
def test_rows_that_are_nobodys_teach_nothing(cut: Cut, tmp_path: Path) -> None:
    _compare(tmp_path, cut, "lognormal:mean=12,min=6")


def _compare(folder: Path, cut: Cut, partition: str | None) -> None:
    """Whatever other rows hold, and as in a table of the rows alone that are trained on."""
    first = cut(load(table(folder / "t.csv"), partition))
    whole = load(folder / "t.csv", partition)
    used = first.train_index
    frame = pd.read_csv(folder / "t.csv")
    # Which line of the file a training row is: its target is in no other line.
    line = {float(y): number for number, y in enumerate(frame["y"])}
    trained = np.array([line[float(y)] for y in first.y_train[used].ravel()])
    tested = {line[float(y)] for y in whole.y_test[whole.test_index].ravel()}
    others = np.array(sorted({*range(120)} - {*trained.tolist()} - tested))
    assert len(others) > 10
    again = cut(load(table(folder / "t.csv", others), partition))
    np.testing.assert_array_equal(again.train_index, used)
    np.testing.assert_array_equal(again.x_train[used], first.x_train[used])
    assert again.task == first.task
    assert isinstance(first.task, Regression)
    values = frame["y"].to_numpy()[trained]
    assert np.ravel(first.task.mean)[0] == pytest.approx(values.mean(), rel=1e-5)
    assert np.ravel(first.task.std)[0] == pytest.approx(values.std(), rel=1e-5)
