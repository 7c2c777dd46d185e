"""The schema of a table: plain JSON, from which equal transformers are built."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from commonground import load_data, load_run, train
from commonground.cli import main
from commonground.data import TableSchema
from commonground.data.tables.encode import category_inputs, encode, learn_columns, to_numbers, transformer
from commonground.data.tables.features import known_features
from commonground.data.tables.kinds import understand
from commonground.data.tables.raw import raw_of_frame
from commonground.data.tables.read import read_raw
from commonground.errors import DataError, RunError


def table(path: Path, rows: int = 80) -> Path:
    rng = np.random.default_rng(1)
    lines = ["who,age,income,plan,since,active,label"]
    for i in range(rows):
        income = "" if i % 7 == 0 else f"{rng.lognormal(10):.2f}"
        date = "" if i % 11 == 0 else f"20{10 + i % 12}-0{1 + i % 9}-1{i % 9}T0{i % 9}:30"
        plan, active = ("abc"[int(rng.integers(3))], ["yes", "no", ""][int(rng.integers(3))])
        lines.append(f"w{i % 4},{rng.integers(18, 90)},{income},{plan},{date},{active},{'xy'[int(rng.integers(2))]}")
    file = path / "people.csv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def test_the_rebuilt_transformer_is_the_one_that_scikit_learn_fits(tmp_path: Path) -> None:
    raw = read_raw(table(tmp_path))
    names = ["age", "income", "plan", "since", "active"]
    columns = [understand(raw.path, name, raw.columns[name], False, raw.where) for name in names]
    training = np.random.default_rng(0).random(raw.rows) < 0.7
    known = learn_columns(columns, training)
    schema = TableSchema.from_json(TableSchema(known, ("label",), "classification", ("x", "y")).to_json())
    assert schema.features == known
    numbers = to_numbers(known, columns, category_inputs(known, columns), np.arange(raw.rows))
    assert numbers.shape == (raw.rows, 5 + 6)  # parts of year, week and day, right after the date
    fitted = ColumnTransformer([
        ("numbers", SimpleImputer(strategy="median", add_indicator=True), [0, 1, 3]),
        ("truths", SimpleImputer(strategy="most_frequent", add_indicator=True), [10]),
        ("dates", SimpleImputer(strategy="constant", fill_value=0.0), [4, 5, 6, 7, 8, 9]),
        ("categories", OneHotEncoder(handle_unknown="ignore", sparse_output=False), [2]),
    ]).fit(numbers[training])  # fmt: skip
    np.testing.assert_array_equal(transformer(schema).transform(numbers), fitted.transform(numbers))
    x = encode(schema, {column.name: column for column in columns}, raw.rows)
    np.testing.assert_array_equal(x, fitted.transform(numbers).astype(np.float32))
    assert x.shape[1] == len(schema.inputs)
    assert [schema.inputs[i] for i in (0, 3, 4)] == ["age", "income is missing", "since is missing"]


def test_the_schema_belongs_to_the_run(tmp_path: Path) -> None:
    file, out = table(tmp_path), tmp_path / "run"
    command = ["train", "fedrep", "--data", str(file), "--client-column", "who", "--rounds", "2", "--out", str(out)]
    assert main([*command, "--quiet"]) == 0
    schema = json.loads((out / "schema.json").read_text("utf-8"))
    assert [column["name"] for column in schema["features"]] == ["age", "income", "plan", "since", "active"]
    assert schema["client_column"] == "who"
    assert "schema.json" in json.loads((out / "summary.json").read_text("utf-8"))["sha256"]
    assert load_run(out).trained.schema == TableSchema.from_json((out / "schema.json").read_text("utf-8"))
    schema["features"][0]["fill"] += 1
    (out / "schema.json").write_text(json.dumps(schema), "utf-8")
    with pytest.raises(RunError, match=r"schema.json' is not what the run wrote"):
        load_run(out)
    (out / "schema.json").unlink()
    with pytest.raises(RunError, match=r"schema.json' is missing"):
        load_run(out)


def test_a_run_in_memory_has_it_too(tmp_path: Path) -> None:
    data = load_data(table(tmp_path), client_column="who")
    run = train("fedavg", data, rounds=1, model="linear")
    assert run.trained.schema is data.schema


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "features": [{}]}'])
def test_what_is_no_schema(text: str) -> None:
    with pytest.raises(DataError, match=r"'schema.json' is no schema of a table"):
        TableSchema.from_json(text)


def test_by_command_label_is_target_and_notes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path)
    file.write_text(file.read_text("utf-8").replace(",", ";"), "latin-1")
    given = ["train", "fedavg", "--data", str(file), "--client-column", "who", "--label", "label", "--rounds", "1"]
    assert main([*given, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "people.csv: separated by semicolons"
    assert said[1].startswith("people.csv: 5 columns (2 number, 1 category, 1 date, 1 boolean) make 16 inputs; cells")


def test_a_rare_category_is_none_also_where_it_is_spelt_like_a_frequent_one() -> None:
    """Of 101 categories one has no input; it is not read as its twin, neither in training nor in prediction."""
    words = [*(f"k{i}" for i in range(100) for _ in range(12)), *["K0"] * 4]
    frame = pd.DataFrame({"code": words, "y": np.arange(len(words)) % 2})
    data = load_data(frame, 1, label="y", kinds={"code": "category"})
    schema = data.schema
    assert schema is not None
    (column,) = schema.features
    assert (len(column.categories), column.apart) == (100, ("K0",))
    assert any("'K0' and 'k0' are two categories" in note for note in schema.notes)
    again = TableSchema.from_json(schema.to_json())
    assert again == schema
    raw = raw_of_frame(pd.DataFrame({"code": ["k0", "K0", "K1", "new"]}))
    rows, strange = known_features(raw, again)
    assert [schema.inputs[i] for i in rows[0].nonzero()[0]] == ["code = k0"]
    assert [schema.inputs[i] for i in rows[2].nonzero()[0]] == ["code = k1"]
    assert not rows[[1, 3]].any()
    assert "2 rows hold what the model has no input for ('K0', 'new')" in strange[0]
