"""What a column is taken for, and what becomes of its cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import commonground as cg
from commonground import load_data
from commonground.data import FederatedDataset, TableSchema
from commonground.data.tables.kinds import Column, understand
from commonground.data.tables.load import load_table
from commonground.data.tables.options import TableOptions
from commonground.errors import ConfigError, DataError


def read(*cells: str, typed: bool = False) -> Column:
    return understand(Path("t.csv"), "c", pa.array(cells), typed, lambda row: f"line {row + 2}")


@pytest.mark.parametrize(
    ("cells", "kind", "numbers"),
    [
        (["1", " 2.5", "1e3"], "number", [1, 2.5, 1000]),
        (["1", "NA", "?"], "number", [1, np.nan, np.nan]),
        (["1,5", "2", "1.234,25"], "number", [1.5, 2, 1234.25]),
        (["1,234.5", "2", "12,345"], "number", [1234.5, 2, 12345]),
        (["13:27", "0:00", "NA"], "number", [48420, 0, np.nan]),
        (["13:27:05.5", "-01:00:00", "39:07:00"], "number", [48425.5, -3600, 140820]),
        (["2 days 03:00:00", "-1 days +23:00:00", "1 day, 0:00:01"], "number", [183600, -3600, 86401]),
        (["16:9", "4:30", "7:61"], "category", None),  # a ratio, most of them
        (["yes", "No", ""], "boolean", [1, 0, np.nan]),
        (["TRUE", "false"], "boolean", [1, 0]),
        (["1970-01-02", "1970-01-01T12:00:00", "1970-01-01 18:00+06:00"], "date", [1, 0.5, 0.75]),
        (["31.01.1970", "01.02.1970"], "date", [30, 31]),
        (["01/31/1970", "02/01/1970"], "date", [30, 31]),
        (["1970/01/31 12:00"] * 2 + ["1970/02/01 00:00"], "date", [30.5, 30.5, 31]),
        (["a", "b", "a"], "category", None),
        (["1", "x", "y", "z"], "category", None),
        (["0,637", "0,270"], "number", [0.637, 0.27]),  # no group of thousands begins with 0
        (["3.5", "1,234,567", "2,345"], "number", [3.5, 1234567, 2345]),
        (["3,270", "x", "y", "z"], "category", None),
        (["x", "x", "NA"], "constant", None),
        (["", "NA"], "constant", None),
        ([f"k{i}" for i in range(30)], "id", None),
        ([f"the cell number {i} of many words" for i in range(30)], "text", None),
    ],
)
def test_kinds(cells: list[str], kind: str, numbers: list[float] | None) -> None:
    column = read(*cells)
    assert column.reading.kind == kind
    if numbers is None:
        assert column.numbers is None
    else:
        assert column.numbers is not None
        np.testing.assert_allclose(column.numbers, np.array(numbers))


def test_a_string_of_a_typed_file_is_no_number() -> None:
    assert read("01", "02", "01", typed=True).reading.kind == "category"


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["1", "2", "x"], "line 4, column 'c': 'x' is no number"),
        (["1", "inf"], "line 3, column 'c': 'inf' is not a finite number"),
        (["1,5", "2.5", "3,5"], "line 3, column 'c': '2.5' has a decimal point, and the column's numbers"),
        (["1,234", "2,345"], "'1,234' may be a decimal one or mark thousands; say --kinds c=comma-number"),
        (["3.1", "2.75", "4.5", "3,270"], "'3,270' may be a decimal one or mark thousands"),
        (["0.1", "0.75", "0.5", "0,270"], "line 5, column 'c': '0,270' has a decimal comma"),
        (
            ["31.01.1970", "02.02.1970", "30.02.1970"],
            r"line 4, column 'c': '30.02.1970' is no date written as %d.%m.%Y",
        ),
    ],
)
def test_a_cell_that_does_not_fit_is_named(cells: list[str], says: str) -> None:
    with pytest.raises(DataError, match=says):
        read(*cells)


def test_day_and_month_that_may_change_places_are_said() -> None:
    assert read("01/02/1970", "03/04/1970").reading.note == "day before month"
    assert read("01/02/1970", "13/04/1970").reading.note == ""


def loaded(tmp_path: Path, text: str, **options: Any) -> tuple[FederatedDataset, TableSchema]:
    (tmp_path / "t.csv").write_text(text, "utf-8")
    data = load_data(tmp_path / "t.csv", client_column="who", **options)
    assert data.schema is not None
    return data, data.schema


LINES = [
    f"w{i % 2},{i},{'' if i == 3 else 'ab'[i % 3 > 0]},r{i},{i % 3},{'train' if i < 15 else 'test'}" for i in range(20)
]
TEXT = "who,n,c,key,label,split\n" + "\n".join(LINES) + "\n"


def test_inputs_have_names_and_ids_are_left_out(tmp_path: Path) -> None:
    data, schema = loaded(tmp_path, TEXT)
    assert schema.inputs == ["n", "c = a", "c = b", "c is missing"]
    assert schema.dropped == {"key": "names a row"}
    assert schema.ids == ("key",)
    assert schema.split == "by the column split"
    assert "left out: 'key' (names a row)" in schema.notes[0]
    assert "all clients' training rows together" in schema.notes[0]
    row = data.x_train[data.train_indices(1)][1]  # the second of w1: line 3
    assert row.tolist() == [3, 0, 0, 1]
    assert data.preprocess.mean == (7.0, 0, 0, 0)  # of 0 … 14; what is 0 or 1 stays so
    assert data.preprocess.std[1:] == (1.0, 1.0, 1.0)


def test_the_user_knows_better(tmp_path: Path) -> None:
    _, schema = loaded(tmp_path, TEXT, kinds="n=category,key=category", drop="c")
    assert [column.kind for column in schema.features] == ["category", "category"]
    assert schema.dropped == {"c": "dropped"}
    for options, says in (
        ({"kinds": {"n": "colour"}}, "the kind of the column 'n' is 'colour'; it is one of number"),
        ({"kinds": "n"}, "'n' is not of the form NAME=KIND"),
        ({"drop": "who"}, "the column 'who' cannot be dropped"),
        ({"scaling": "bounds:n=0"}, "the bounds 'n=0' are not of the form"),
        ({"scaling": "bounds:m=0:1"}, "the bounds lack the column 'n'"),
        ({"scaling": "bounds:n=0:1,m=0:1"}, "the bounds name 'm', which is none of the numbers n"),
        ({"text_column": "c"}, "the text column 'c' needs a model that reads texts"),
    ):
        with pytest.raises(ConfigError, match=says):
            loaded(tmp_path, TEXT, **options)
    with pytest.raises(DataError, match=r"has no column 'keys' \(did you mean 'key'\?\)"):
        loaded(tmp_path, TEXT, drop="keys")
    table = TEXT.replace("key", '"key, old"', 1)
    with pytest.raises(DataError, match=r"has no column 'key' \(did you mean '\"key, old\"'\?\); its columns are"):
        loaded(tmp_path, table, drop="key, old")


def test_scales_by_choice(tmp_path: Path) -> None:
    bounded, schema = loaded(tmp_path, TEXT, scaling="bounds:n=0:20")
    assert (schema.mean[0], schema.std[0]) == (10.0, 10.0)
    plain, _ = loaded(tmp_path, TEXT, scaling="none")
    assert plain.preprocess.mean == ()
    own, schema = loaded(tmp_path, TEXT, scaling="client")
    assert own.preprocess.mean == ()
    assert schema.features[0].low is None  # no client's extremes are kept
    for client in range(2):
        rows = own.x_train[own.train_indices(client), 0]
        raw = plain.x_train[plain.train_indices(client), 0]
        np.testing.assert_allclose(rows, (raw - raw.mean()) / raw.std(), rtol=1e-5, atol=1e-6)
        assert schema.client_scales[f"w{client}"]["mean"][0] == pytest.approx(raw.mean())
    assert bounded.x_train[0, 0] == plain.x_train[0, 0]


def test_a_class_of_test_rows_alone_is_said(tmp_path: Path) -> None:
    text = TEXT.replace("r19,1,", "r19,9,")
    data, schema = loaded(tmp_path, text)
    assert data.class_names == ("0", "1", "2", "9")
    assert schema.notes[-1] == "1 test rows are of classes that no training row has ('9'): they count as wrong"


def test_times_are_the_same_numbers_from_text_and_from_a_type(tmp_path: Path) -> None:
    """A run on the one answers the other."""
    import pandas as pd

    rng = np.random.default_rng(0)
    times = [
        f"{h:02d}:{m:02d}:{s:02d}" for h, m, s in zip(*(rng.integers(0, n, 60) for n in (24, 60, 60)), strict=True)
    ]
    frame = pd.DataFrame({"who": ["a", "b"] * 30, "at": times, "label": ["x", "y", "x"] * 20})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.assign(at=pd.to_timedelta(frame["at"])).to_parquet(tmp_path / "t.parquet")
    found = [load_table(tmp_path / name) for name in ("t.csv", "t.parquet")]
    np.testing.assert_array_equal(found[0].x_train, found[1].x_train)
    for one, other in (found, found[::-1]):
        assert one.origin.schema is not None
        assert [column.name for column in one.origin.schema.features if column.kind == "number"] == ["at"]
        path = tmp_path / other.name
        np.testing.assert_array_equal(load_table(path, schema=one.origin.schema).x_train, one.x_train)


def test_a_class_that_the_run_knows_is_no_surprise(tmp_path: Path) -> None:
    """A new client's training rows may lack it."""
    _, schema = loaded(tmp_path, TEXT)
    head, *rows = (line.rpartition(",")[0] for line in TEXT.splitlines())
    rows = [f"{row},{'test' if row.endswith(',1') else 'train'}" for row in rows]
    path = tmp_path / "new.csv"
    path.write_text("\n".join([f"{head},split", *rows]) + "\n")
    again = load_table(path, schema=schema)
    assert again.origin.schema is not None
    assert not any("no training row" in note for note in again.origin.schema.notes)


def test_targets_of_very_different_sizes_are_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"w{i % 2},{a:.5f},{1000 * b:.3f},{c:.5f}" for i, (a, b, c) in enumerate(rng.normal(size=(60, 3)))]
    path = tmp_path / "two.csv"
    path.write_text("\n".join(["who,x,price,rate", *rows]) + "\n")
    said = "'price' varies [0-9,]+ times as much as 'rate'; RMSE, .* tell little of the latter: --rank-by r2"
    first = load_table(path, label="price,rate", task="regression").origin.schema
    assert first is not None
    assert [note for note in first.notes if re.match(said, note)]
    path.write_text("\n".join(["who,x,price,rate", *(re.sub(r",([^,]*),([^,]*)$", r",\1e20,\2", row) for row in rows)]))
    # Squares of these are more than single precision can hold.
    huge = load_table(path, label="price,rate", task="regression").origin.schema
    assert huge is not None
    assert [note for note in huge.notes if re.match(said, note)]
    path.write_text("\n".join(["who,x,price,rate", *rows]) + "\n")
    for label in ("price", "x,rate"):
        about = load_table(path, label=label, task="regression").origin.schema
        assert about is not None
        assert not any("times as much" in note for note in about.notes)
    again = load_table(path, schema=first).origin.schema
    assert again is not None
    assert not any("times as much" in note for note in again.notes)


def test_columns_that_are_left_out_are_all_counted(tmp_path: Path) -> None:
    names = [f"id{k}" for k in range(8)]
    rows = [",".join([f"w{i % 2}", f"{i % 7}", *(f"{name}-{i}" for name in names), "ab"[i % 2]]) for i in range(60)]
    path = tmp_path / "ids.csv"
    path.write_text("\n".join([",".join(["who", "x", *names, "label"]), *rows]) + "\n")
    about = load_table(path, options=TableOptions(client_column="who")).origin.schema
    assert about is not None
    assert any("'id4' (names a row) and 3 more" in note for note in about.notes)


def test_missing_numbers_get_the_median_and_a_mark(tmp_path: Path) -> None:
    data, schema = loaded(tmp_path, TEXT.replace("w1,1,", "w1,,", 1))
    assert schema.inputs[:2] == ["n", "n is missing"]
    assert schema.features[0].fill == 7.5  # of 0, 2, 3, …, 14
    assert data.x_train[data.train_indices(1)][0, :2].tolist() == [7.5, 1.0]


@pytest.mark.parametrize("scale", [1, 3, 100])
def test_a_model_s_errors_are_larger_than_the_rounding_of_its_targets(scale: int) -> None:
    """Targets of a million that differ by little: what a run says of errors is what its predictions' are."""
    rng = np.random.default_rng(1)
    x = np.round(3 * rng.normal(size=200), 3)
    y = 1e6 + scale * (x + 0.1 * rng.normal(size=200))
    frame = pd.DataFrame({"who": rng.choice(["a", "b"], 200), "x": x, "y": y})
    data = load_data(frame, client_column="who", target="y", task="regression")
    run = cg.train("local", data, rounds=10, seed=0)
    tested = cg.predict_tests(run, data=data)

    def rmse(actual: Any, predicted: Any) -> float:
        return float(np.sqrt(np.mean((np.asarray(actual) - np.asarray(predicted)) ** 2)))

    said = run.summary["metrics"]["rmse"]["over_rows"]
    assert rmse(tested["actual y"], tested["y"]) == pytest.approx(said, rel=1e-5)
    predicted = cg.predict_rows(run, frame)["y"].iloc[tested["sample"]]
    assert rmse(y[tested["sample"]], predicted) == pytest.approx(said, rel=1e-5)


def test_whole_numbers_that_double_precision_does_not_tell_apart_are_named() -> None:
    steps = np.arange(200)
    frame = pd.DataFrame(
        {"who": np.where(steps % 2, "a", "b"), "n": 10**18 + steps, "y": np.where(steps > 99, "p", "q")}
    )
    told = load_data(frame, client_column="who", target="y").schema
    assert told is not None
    assert any("n: its 200 different numbers are 3 in double precision, whose steps are 128" in n for n in told.notes)
    small = load_data(frame.assign(n=2**50 + steps), client_column="who", target="y").schema
    assert small is not None
    assert not any("double precision" in note for note in small.notes)
