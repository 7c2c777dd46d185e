"""What a table means does not depend on how its cells are stored: units, indexes, sparseness, spelling, precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.data.own_table import OwnTable
from commonground.data.tables.features import known_features
from commonground.data.tables.raw import raw_of_frame
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.spelling import places_of
from commonground.errors import DataError

N = 60


def frame(**columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    plain = {"who": np.repeat(list("ab"), N // 2), "x": rng.normal(size=N), "y": rng.choice(["no", "up"], N)}
    return pd.DataFrame({**plain, **columns})


def loaded(table: Any, **options: Any) -> cg.FederatedDataset:
    table = str(table) if isinstance(table, Path) else table
    return cg.load_data(table, client_column="who", target="y", **options)


def schema_of(table: Any, **options: Any) -> TableSchema:
    found = loaded(table, **options).schema
    assert found is not None
    return found


def test_an_index_without_a_name_is_no_feature(tmp_path: Path) -> None:
    whole = frame()
    whole[whole.x > -1].to_parquet(tmp_path / "some.parquet")
    assert [column.name for column in schema_of(tmp_path / "some.parquet").features] == ["x"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_seconds(unit: str, tmp_path: Path) -> None:
    waits = pd.Series(np.arange(N) * 7, dtype="int64").astype("timedelta64[s]").astype(f"timedelta64[{unit}]")
    table = frame(x=waits)
    table.to_parquet(tmp_path / "waits.parquet")
    for source in (table, tmp_path / "waits.parquet"):
        data = loaded(source)
        assert sorted([*data.x_train[:, 0], *data.x_test[:, 0]]) == [7 * n for n in range(N)]


def test_durations_of_an_earlier_run_are_not_taken_for_seconds(tmp_path: Path) -> None:
    """It knew them as numbers in the unit that they were stored in."""
    table = frame(x=pd.to_timedelta(np.arange(N) * 7, unit="s"))
    schema = schema_of(table)
    assert schema.features[0].seconds is True
    earlier = json.loads(schema.to_json())
    del earlier["features"][0]["seconds"]
    old = TableSchema.from_json(json.dumps(earlier))
    assert TableSchema.from_json(schema.to_json()) == schema
    with pytest.raises(DataError, match="the column 'x' holds durations, and an earlier version"):
        known_features(raw_of_frame(table), old)
    known_features(raw_of_frame(frame()), old)
    known_features(raw_of_frame(table), schema)


def test_a_column_may_be_called_self() -> None:
    months = pd.Series(pd.period_range("2020-01", periods=N, freq="M"))
    assert schema_of(frame().assign(**{"frame": 1.5}).join(months.rename("self"))).features[-1].kind == "date"


@pytest.mark.parametrize("values", [[0.3, 0.1 + 0.2], [20.0001, 20.00012]])
def test_targets_of_one_client_may_be_nearly_equal(values: list[float], tmp_path: Path) -> None:
    table = pd.DataFrame({"x": np.arange(6) / 7.0, "y": values * 3})
    rounded = values[0] > 1
    assert cg.load_data(table, target="y", task="regression", clients=1).task.in_double is rounded
    wide = cg.load_data(table.assign(y=np.arange(6) * 1.5), target="y", task="regression", clients=1)
    assert cg.load_data(table, target="y", schema=wide.schema, clients=1).train_sizes.sum() > 0
    table.to_csv(tmp_path / "own.csv", index=False)
    assert OwnTable(tmp_path / "own.csv", "a", "y", task="regression").columns.train > 0


def test_times_of_day_are_seconds() -> None:
    data = loaded(frame(x=pd.to_datetime(pd.Series(np.arange(N) * 600), unit="s").dt.time))
    assert max(data.x_train.max(), data.x_test.max()) == 600 * (N - 1)


def test_intervals_periods_and_sparse_columns_are_read() -> None:
    table = frame()
    bins = pd.cut(table.x, [-9, 0, 9])
    data = loaded(frame(x=bins))
    assert schema_of(frame(x=bins)).features[0].categories == ("(-9, 0]", "(0, 9]")
    np.testing.assert_array_equal(loaded(frame(x=bins.astype(str))).x_train, data.x_train)
    months = schema_of(frame(x=pd.period_range("2020-01", periods=N, freq="M")))
    assert months.features[0].kind == "date"
    dense = pd.get_dummies(table.x > 0, prefix="up", dtype=float)
    sparse = pd.get_dummies(table.x > 0, prefix="up", dtype=float, sparse=True)
    kept = table.drop(columns="x")
    stored, plain = (loaded(pd.concat([kept, part], axis=1)).x_train for part in (sparse, dense))
    np.testing.assert_array_equal(stored, plain)


def test_numbers_that_single_precision_rounds_away_are_told_apart_or_told() -> None:
    assert not schema_of(frame()).notes
    far = frame(x=1.7e9 + frame().x * 100)
    assert schema_of(far).features[0].offset == pytest.approx(1.7e9, abs=4096 + 100)
    assert not schema_of(far).notes
    notes = schema_of(far, scaling="none").notes
    assert any("are rounded to steps of 128 in single precision" in note for note in notes)
    for y in (1.7e9 + np.arange(N), 4.2e9 + 1e8 * np.random.default_rng(0).normal(size=N).round(3), np.arange(N) + 0.1):
        data = loaded(frame(y=y), task="regression")
        kept = np.concatenate([data.y_train, data.y_test]).ravel()
        assert kept.dtype == (np.float64 if y.max() > 2**24 else np.float32)
        np.testing.assert_array_equal(np.sort(kept), np.sort(y.astype(kept.dtype)))
        assert data.task.in_double is (kept.dtype == np.float64)


def test_a_number_that_counts_the_rows_is_told() -> None:
    for counts in (np.arange(5, 5 + N), np.arange(N)[::-1], np.random.default_rng(0).permutation(N)):
        notes = schema_of(frame(row=counts)).notes
        assert any(note.startswith("row: it counts the rows") for note in notes)
    assert not schema_of(frame(row=np.arange(N) * 2)).notes


def test_points_beside_decimal_commas_may_mark_thousands(tmp_path: Path) -> None:
    path = tmp_path / "german.csv"
    lines = [f"{'ab'[n % 2]};{n},5;{n + 1}.520;{'up' if n % 3 else 'no'}" for n in range(40)]
    path.write_text("who;preis;umsatz;y\n" + "\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"column 'umsatz': the point in '1\.520' may be a decimal one or mark thou"):
        loaded(path)
    for kind, first in (("comma-number", 1520.0), ("number", 1.52)):
        data = loaded(path, kinds=f"umsatz={kind}")
        assert min(data.x_train[:, 1].min(), data.x_test[:, 1].min()) == pytest.approx(first)
    path.write_text("who;preis;umsatz;y\n" + "\n".join(lines).replace(".520", ".52") + "\n")
    assert loaded(path).x_train[:, 1].max() < 50  # these cannot mark thousands
    path.write_text("who,preis,umsatz,y\n" + "\n".join(lines).replace(",", ".").replace(";", ",") + "\n")
    assert loaded(path).x_train[:, 1].max() < 50  # no decimal comma beside them


@pytest.mark.parametrize(
    ("names", "words", "places"),
    [
        (["false", "true"], ["True", "FALSE", "true"], [1, 0, 1]),
        (["0", "1"], ["1.0", "0", "0.0", "2"], [1, 0, 0, -1]),
        (["2020-01-01", "2020-01-02"], ["2020-01-02 00:00:00", "2020-01-03"], [1, -1]),
        (["Up", "up"], ["UP", "up", "Up"], [-1, 1, 0]),
        (["007", "7"], ["7.0", "7", "007"], [1, 1, 0]),  # 007 is no number, but a name
        (["9007199254740993", "5"], ["9007199254740992", "9007199254740993.0"], [-1, 0]),
        (["11_1", "100", "x"], ["1_11", "111", "1E2", "+100", "0100"], [-1] * 5),
        (["250", "250.01"], ["250.0", "250"], [-1, 0]),  # codes: what a column's points say is not known
        (["2024-01-01"], ["2024-01", "2024-01-01T00:00:00Z"], [-1, 0]),
        (["a"], [], []),
    ],
)
def test_a_class_is_known_however_it_is_spelt(names: list[str], words: list[str], places: list[int]) -> None:
    assert places_of(words, names) == places


def test_a_global_model_knows_no_scales_of_clients_with_few_rows() -> None:
    data = loaded(frame(who=["a"] * 40 + ["b"] * 15 + ["c"] * 5), min_rows=10, few_rows="shared", scaling="client")
    with pytest.raises(cg.CommonGroundError, match=r"--few-rows shared serves .* with --scaling client it knows no"):
        cg.train("fedavg", data, rounds=1)


def test_exchanged_column_names_are_not_resumed(tmp_path: Path) -> None:
    own = frame(z=frame().x * 2)
    cg.train("fedavg", loaded(own), rounds=1, out=tmp_path)
    swapped = loaded(own.rename(columns={"x": "z", "z": "x"}))
    for rounds in (1, 2):
        with pytest.raises(cg.CommonGroundError, match="was started on a table with 'x' where 'z' is now"):
            cg.train("fedavg", swapped, rounds=rounds, out=tmp_path, resume=True)
    assert cg.train("fedavg", loaded(own), rounds=2, out=tmp_path, resume=True).summary["rounds"] == 2
