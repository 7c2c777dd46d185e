"""Rows are held out for validation as test rows are: whole groups, or the last ones by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import commonground as cg
from commonground.data import FederatedDataset, hold_out, limit_samples
from commonground.data.arrays import Related
from commonground.data.own_table import OwnTable, table_data
from commonground.data.tables.options import table_options
from commonground.data.validation import validation_split
from commonground.errors import DataError

Rows = npt.NDArray[np.int64]


def visits(path: Path) -> pd.DataFrame:
    """Two sites, 12 patients each with 3 to 5 visits at times in no order; ``x`` is the row's number."""
    rng, rows = np.random.default_rng(0), []
    for site in "ab":
        for patient in range(12):
            rows += [{"site": site, "patient": f"p{patient}"} for _ in range(int(rng.integers(3, 6)))]
    frame = pd.DataFrame(rows).sample(frac=1, random_state=0).reset_index(drop=True)
    frame["x"] = np.arange(len(frame), dtype=float)
    frame["when"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(len(frame)), unit="h")
    frame["label"] = rng.choice(["p", "q"], len(frame))
    frame.to_csv(path, index=False)
    return frame


def rows_of(data: FederatedDataset, index: Rows) -> Rows:
    """Numbers in the table of training samples, whose first input is that number."""
    return np.rint(data.x_train[index][:, 0]).astype(np.int64)


@pytest.mark.parametrize("split", ["held", "tuned", "tuned twice", "limited"])
def test_no_group_is_on_both_sides(split: str, tmp_path: Path) -> None:
    frame = visits(tmp_path / "t.csv")
    data = cg.load_data(
        str(tmp_path / "t.csv"),
        client_column="site",
        group_column="patient",
        drop="when",
        label="label",
        scaling="none",
    )
    if split == "limited":
        data = limit_samples(data, "train", 20, 0)
    if split == "tuned twice":
        data = hold_out(data, 0.3, 1)
    made = hold_out(data, 0.3, 0) if split in ("held", "limited") else validation_split(data, 0.3, 0)
    for client in range(data.clients):
        kept = frame.patient[rows_of(made, made.train_indices(client))]
        chosen = made.validation_indices(client) if split in ("held", "limited") else made.test_indices(client)
        held = frame.patient[rows_of(made, chosen)]
        assert len(held) >= round(0.3 * (len(kept) + len(held)))
        assert not {*kept} & {*held}
        assert len({*held}) > 1
        assert len(kept)


@pytest.mark.parametrize("split", ["held", "tuned"])
def test_the_last_rows_by_time_are_held_out(split: str, tmp_path: Path) -> None:
    frame = visits(tmp_path / "t.csv")
    how: dict[str, Any] = {"client_column": "site", "label": "label", "scaling": "none"}
    data = cg.load_data(str(tmp_path / "t.csv"), time_column="when", drop="patient", **how)
    made = hold_out(data, 0.25, 0) if split == "held" else validation_split(data, 0.25, 0)
    for client in range(data.clients):
        kept = frame.when[rows_of(made, made.train_indices(client))]
        chosen = made.validation_indices(client) if split == "held" else made.test_indices(client)
        held = frame.when[rows_of(made, chosen)]
        assert kept.max() < held.min()
        assert len(held) == round(0.25 * (len(kept) + len(held)))
        if split == "held":
            tested = frame.when[np.rint(made.x_test[made.test_indices(client)][:, 0]).astype(int)]
            assert held.max() < tested.min()


@pytest.mark.parametrize("column", ["patient", "when"])
def test_a_client_of_a_network_holds_out_the_same_rows(column: str, tmp_path: Path) -> None:
    frame = visits(tmp_path / "t.csv")
    groups, times = {"group_column": "patient", "drop": "when"}, {"time_column": "when", "drop": "patient"}
    settings: dict[str, Any] = {**(groups if column == "patient" else times), "scaling": "none"}
    whole = cg.load_data(str(tmp_path / "t.csv"), client_column="site", label="label", **settings)
    made = hold_out(whole, 0.3, 5)
    assert whole.schema is not None
    for number, site in enumerate("ab"):
        frame[frame.site == site].drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
        OwnTable(tmp_path / f"{site}.csv", site, "label", options=table_options(settings))  # may be agreed on
        own = table_data(tmp_path / f"{site}.csv", whole.schema, site, table_options(settings))
        alone = hold_out(own, 0.3, 5, [number])
        for one, other in (
            (made.validation_indices(number), alone.validation_indices(0)),
            (made.train_indices(number), alone.train_indices(0)),
        ):
            np.testing.assert_array_equal(rows_of(made, one), rows_of(alone, other))


def test_of_one_group_none_is_held_out(tmp_path: Path) -> None:
    frame = visits(tmp_path / "t.csv")
    one = frame[(frame.site == "b") | frame.patient.isin(["p0", "p1"])]  # of two groups one is of test rows
    one.to_csv(tmp_path / "one.csv", index=False)
    how: dict[str, Any] = {"client_column": "site", "group_column": "patient", "drop": "when", "label": "label"}
    data = cg.load_data(str(tmp_path / "one.csv"), **how)
    made = hold_out(data, 0.3, 0)
    assert not len(made.validation_indices(0))
    assert len(made.validation_indices(1))
    assert validation_split(data, 0.3, 0).client_names == ("b",)
    frame[frame.patient.isin(["p0", "p1"])].to_csv(tmp_path / "few.csv", index=False)
    few = cg.load_data(str(tmp_path / "few.csv"), **how)
    for cut in (hold_out, validation_split):
        with pytest.raises(DataError, match=r"no client of 'few\.csv' has training samples of two groups"):
            cut(few, 0.3, 0)


def test_by_hand() -> None:
    rng = np.random.default_rng(0)
    times = Related("time", np.array([5.0, 1.0, 9.0, 9.0, 2.0]))
    assert times.held(np.array([0, 1, 2, 3]), 1, rng).tolist() == [False, False, False, True]
    assert times.held(np.array([4, 0, 1]), 2, rng).tolist() == [True, True, False]
    groups = Related("group", np.array([3, 3, 7, 7, 7, 3]))
    for _ in range(5):
        held = groups.held(np.arange(6), 1, rng)
        assert held.tolist() in ([True, True, False, False, False, True], [False, False, True, True, True, False])
    assert not groups.held(np.array([0, 1]), 1, rng).any()
