"""Truths among numbers are refused by name in every kind of table, and mean in a prediction what they meant before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commonground import load_data
from commonground.data import TableSchema
from commonground.data.own_table import OwnTable
from commonground.data.tables.features import known_features
from commonground.data.tables.options import table_options
from commonground.data.tables.raw import RawTable, raw_of_frame
from commonground.data.tables.read import read_raw
from commonground.data.tables.told import Agreed, StatisticsRequest
from commonground.errors import DataError

ROWS = 40


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"who": [f"w{i % 2}" for i in range(ROWS)], "age": rng.normal(50, 9, ROWS).round(1)})
    table["smokes"] = rng.random(ROWS) < 0.4
    return table.assign(label=np.where(table.smokes ^ (table.age > 50), "ill", "well"))


def schema_of(table: pd.DataFrame, **options: Any) -> TableSchema:
    schema = load_data(table, client_column="who", label="label", **options).schema
    assert schema is not None
    return TableSchema.from_json(schema.to_json())


def raw_as(form: str, table: pd.DataFrame, folder: Path) -> RawTable:
    path = folder / f"t.{form}"
    if form == "frame":
        return raw_of_frame(table)
    if form == "csv":
        table.to_csv(path, index=False)
    elif form == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    return read_raw(path)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "frame"])
def test_a_truth_is_no_number_that_training_had(form: str, tmp_path: Path) -> None:
    schema = schema_of(frame())
    wrong = frame().assign(age=pd.array([None, *[True] * (ROWS - 1)], dtype="boolean"))
    place = {"csv": "line 3", "jsonl": "line 2"}.get(form, "row 2")
    with pytest.raises(DataError, match=rf"{place}, column 'age': '[tT]rue' is no number"):
        known_features(raw_as(form, wrong, tmp_path), schema)
    empty = wrong.assign(age=pd.array([None] * ROWS, dtype="boolean"))
    assert (known_features(raw_as(form, empty, tmp_path), schema)[0][:, 0] == np.float32(schema.features[0].fill)).all()


@pytest.mark.parametrize("kind", ["boolean", "number", "category"])
@pytest.mark.parametrize("form", ["parquet", "frame"])
def test_a_truth_means_what_it_meant_in_training(form: str, kind: str, tmp_path: Path) -> None:
    schema = schema_of(frame(), kinds="" if kind == "boolean" else f"smokes={kind}")
    assert schema.features[1].kind == kind
    x, strange = known_features(raw_as(form, frame(), tmp_path), schema)
    assert strange == []
    np.testing.assert_array_equal(x[:, -1], frame().smokes)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([51.3, True], "row 2, column 'age': 'true' is a truth, and row 1 has a number"),
        ([True, None, 51.3], "row 3, column 'age': '51.3' is a number, and row 1 has a truth"),
        ([None, np.nan, 1, np.bool_(False)], "row 4, column 'age': 'false' is a truth, and row 3 has a number"),
        ([np.float32(1.5), "x"], "row 2, column 'age': 'x' is a text, and row 1 has a number"),
        (["x", False], "row 2, column 'age': 'false' is a truth, and row 1 has a text"),
    ],
)
def test_cells_of_several_kinds_are_named(cells: list[Any], says: str) -> None:
    table = pd.DataFrame({"age": pd.Series(cells, dtype=object), "label": "x"})
    with pytest.raises(DataError) as caught:
        raw_of_frame(table)
    assert str(caught.value) == f"the table, {says}; the cells of a column are of one kind"


def test_what_else_no_column_holds_is_told_in_words() -> None:
    with pytest.raises(DataError, match=r"cannot be read as a table: \"?'?Could not convert Timestamp") as caught:
        raw_of_frame(pd.DataFrame({"age": pd.Series([1.5, pd.Timestamp("2024-01-01")], dtype=object)}))
    assert "Conversion failed for column age" in str(caught.value)
    assert "('" not in str(caught.value).replace("Timestamp('", "")


def test_a_client_of_a_network_says_that_its_truths_are_numbers(tmp_path: Path) -> None:
    frame().drop(columns="who").to_parquet(tmp_path / "t.parquet")
    table = OwnTable(tmp_path / "t.parquet", "one", "label", options=table_options({"kinds": "smokes=number"}))
    asked = table.columns.columns
    assert [column.kind for column in asked] == ["number", "number"]
    told = table.statistics(StatisticsRequest(columns=asked))
    features = [{**column.model_dump(), "fill": one.mean} for column, one in zip(asked, told.columns, strict=True)]
    own = table.columns
    agreed = Agreed.model_validate({
        "features": tuple(features), "dropped": {}, "targets": own.targets, "task": own.task,
        "class_names": own.class_names, "target_decimals": own.target_decimals, "mean": (0.0, 0.0), "std": (1.0, 1.0),
    })  # fmt: skip
    assert set(table.load(agreed).x_train[:, 1]) == {0.0, 1.0}
    known_features(raw_as("parquet", frame(), tmp_path), agreed.schema_of_all())  # a prediction's, too


def test_a_schema_that_does_not_say_so_takes_truths_for_numbers(tmp_path: Path) -> None:
    """As the versions that wrote such did."""
    values = json.loads(schema_of(frame(), kinds="smokes=number").to_json())
    for feature in values["features"]:
        del feature["truths"]
    schema = TableSchema.from_json(json.dumps(values))
    np.testing.assert_array_equal(known_features(raw_as("frame", frame(), tmp_path), schema)[0][:, -1], frame().smokes)
