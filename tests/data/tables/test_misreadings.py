"""Cells that say one thing to people and another to a reader: grouped thousands, codes, times among numbers, files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.data.tables.features import known_features
from commonground.data.tables.inspect import inspect_table
from commonground.data.tables.read import read_raw
from commonground.data.tables.schema import TableSchema
from commonground.errors import CommonGroundWarning, DataError

GROUPED = ["2.545", "932", "506", "1.035", "100", "1.200.000"]


def write(path: Path, column: Sequence[str], name: str = "sales") -> Path:
    rows = [f"{'ab'[i % 2]};{column[i % len(column)]};{i % 3 % 2}" for i in range(24)]
    path.write_text("\n".join([f"who;{name};won", *rows]) + "\n")
    return path


def test_points_that_mark_thousands_are_asked_about(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", GROUPED[:5])
    says = r"column 'sales': the point in '[\d.]+' may be a decimal one or mark thousands, as beside it .*comma-number"
    with pytest.raises(DataError, match=says):
        cg.load_data(path, client_column="who", target="won")
    for kind, low, high in (("comma-number", 100, 2545), ("number", 1.035, 932)):
        read = cg.load_data(path, client_column="who", target="won", kinds={"sales": kind})
        assert read.schema is not None
        assert [(c.low, c.high) for c in read.schema.features if c.name == "sales"] == [(low, high)]
    whole = cg.load_data(write(path, GROUPED), client_column="who", target="won")  # 1.200.000 leaves nothing open
    assert whole.schema is not None
    assert [(c.low, c.high) for c in whole.schema.features if c.name == "sales"] == [(100, 1_200_000)]


@pytest.mark.parametrize(
    "column",
    [
        ["2.545", "932.5", "506"],  # one point that marks no thousands
        ["0.125", "1.250", "100"],  # no group begins with 0
        ["1.125", "3", "4"],  # no number of three digits
        ["1.125", "1000", "100"],  # a thousand without its point
        ["1.5", "100", "250"],
    ],
)
def test_fractions_are_not_asked_about(column: list[str], tmp_path: Path) -> None:
    data = cg.load_data(write(tmp_path / "t.csv", column), client_column="who", target="won")
    assert data.schema is not None
    (sales,) = (found for found in data.schema.features if found.name == "sales")
    assert (sales.kind, sales.high) == ("number", max(map(float, column)))


def test_a_file_of_grouped_numbers_is_told_to_a_run_that_knows_them_plain(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ["2545", "932", "506", "1035", "100"])
    data = cg.load_data(path, client_column="who", target="won")
    run = cg.train("fedavg", data, model="linear", rounds=1, out=tmp_path / "run")
    with pytest.warns(CommonGroundWarning) as told:
        cg.predict_rows(run, write(tmp_path / "new.csv", GROUPED[:5]))
    assert any("seems to mark thousands" in str(one.message) and "comma-number" in str(one.message) for one in told)


def test_a_code_that_begins_with_zero_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ["02139", "10001", "94105"], "zip")
    data = cg.load_data(path, client_column="who", target="won")
    assert any(
        note.startswith("zip: '02139' is read as the number 2139; if it is a code, say") for note in data.about["notes"]
    )
    shown = {column.name: column.suspicious for column in inspect_table(path).columns}
    assert "if it is a code" in shown["zip"]
    told = cg.load_data(path, client_column="who", target="won", kinds={"zip": "category"})
    assert not any("02139" in note for note in told.about["notes"])


def test_a_time_among_numbers_is_refused_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 4, column 'sales': '1:30' is a time of day or a duration"):
        cg.load_data(write(tmp_path / "t.csv", ["2.5", "1", "1:30", "4", "5"]), client_column="who", target="won")
    data = cg.load_data(write(tmp_path / "u.csv", ["1:30", "2:15", "0"]), client_column="who", target="won")
    assert data.schema is not None
    assert [(c.low, c.high, c.clocks) for c in data.schema.features if c.name == "sales"] == [(0, 8100, True)]
    with pytest.raises(DataError, match=r"line 4, column 'sales': '90' is a plain number, and the column holds times"):
        cg.load_data(write(tmp_path / "v.csv", ["1:30", "2:15", "90"]), client_column="who", target="won")


NUMBERS, TIMES = ["1", "20", "45", "7"], ["1:30", "2:15", "13:45"]


@pytest.mark.parametrize(
    ("trained", "cells", "says"),
    [
        (NUMBERS, ["12:30"], "line 2, column 'sales': '12:30' is a time of day"),
        (NUMBERS, ["12:30", "5"], "line 2, column 'sales': '12:30' is a time of day"),
        (NUMBERS, ["5", "12:30", "12:31"], "line 3, column 'sales': '12:30' is a time of day"),
        (TIMES, ["45"], "line 2, column 'sales': '45' is a plain number"),
        (TIMES, ["12:30", "45", "46"], "line 3, column 'sales': '45' is a plain number"),
    ],
)
def test_whether_a_column_holds_times_is_learnt_once(
    trained: list[str], cells: list[str], says: str, tmp_path: Path
) -> None:
    """And does not depend on the other rows of a file."""
    path = write(tmp_path / "t.csv", trained)
    run = cg.train("fedavg", cg.load_data(path, client_column="who", target="won"), model="linear", rounds=1)
    new = tmp_path / "new.csv"
    new.write_text("\n".join(["who;sales", *(f"a;{cell}" for cell in cells)]) + "\n")
    with pytest.raises(DataError, match=says):
        cg.predict_rows(run, new)
    assert len(cg.predict_rows(run, pd.DataFrame({"who": ["a"], "sales": trained[:1]}))) == 1


def test_seconds_that_are_stored_as_numbers_are_times(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", TIMES)
    run = cg.train("fedavg", cg.load_data(path, client_column="who", target="won"), model="linear", rounds=1)
    frame = pd.DataFrame({"who": ["a", "a"], "sales": [5400, 8100]})
    said, stored = (cg.predict_rows(run, one) for one in (frame.assign(sales=["1:30", "2:15"]), frame))
    pd.testing.assert_frame_equal(said, stored)
    with pytest.raises(DataError, match="row 1, column 'sales': '5400' is a plain number"):
        cg.predict_rows(run, frame.assign(sales=["5400", "2:15"]))
    durations = pd.read_csv(path, sep=";").assign(sales=lambda f: pd.to_timedelta(f.sales + ":00"))
    data = cg.load_data(durations, client_column="who", target="won")
    assert data.schema is not None
    assert [c.clocks for c in data.schema.features] == [True]


def test_a_run_of_before_takes_for_times_what_most_cells_of_a_file_are(tmp_path: Path) -> None:
    data = cg.load_data(write(tmp_path / "t.csv", NUMBERS), client_column="who", target="won")
    assert data.schema is not None
    earlier = json.loads(data.schema.to_json())
    for name in ("clocks", "affix"):
        del earlier["features"][0][name]
    schema = TableSchema.from_json(json.dumps(earlier))
    assert (schema.features[0].clocks, schema.features[0].affix) == (None, "")
    path = write(tmp_path / "new.csv", ["12:30", "12:31", "5"])
    x, _ = known_features(read_raw(path), schema)
    assert x[:3, 0].tolist() == [45000, 45060, 5]


def test_each_file_is_a_client_by_its_whole_name_and_folders_below_are_told(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(20.0), "won": np.arange(20) % 2})
    for name in ("dr.smith", "dr.jones", "2024.01", "below/more"):
        path = tmp_path / "all" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(path, index=False)
    data = cg.load_data(tmp_path / "all", client_column="file", target="won")
    assert data.client_names == ("2024.01", "dr.jones", "dr.smith")
    assert "left out: 'below/more.csv', in folders below" in data.about["notes"]
    frame.to_csv(tmp_path / "all" / "dr.smith.csv.gz", index=False)
    with pytest.raises(DataError, match=r"two files are called 'dr\.smith'"):
        cg.load_data(tmp_path / "all", client_column="file", target="won")


def test_words_of_json_lines_are_as_they_are_written(tmp_path: Path) -> None:
    """Words that look like moments name clients and classes, and are dates where they are features."""
    rows = [
        {"who": f"2024-01-0{1 + i % 2}", "day": f"2024-02-{10 + i}", "x": i, "won": f"2024-03-01T0{i % 3 % 2}:00:00"}
        for i in range(18)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    lines, cells = (
        cg.load_data(tmp_path / f"t.{kind}", client_column="who", target="won") for kind in ("jsonl", "csv")
    )
    assert lines.client_names == cells.client_names == ("2024-01-01", "2024-01-02")
    assert lines.class_names == cells.class_names == ("2024-03-01T00:00:00", "2024-03-01T01:00:00")
    assert lines.schema is not None
    assert cells.schema is not None
    kinds = {column.name: column.kind for column in lines.schema.features}
    assert kinds == {"day": "date", "x": "number"} == {column.name: column.kind for column in cells.schema.features}
    np.testing.assert_array_equal(lines.x_train, cells.x_train)
