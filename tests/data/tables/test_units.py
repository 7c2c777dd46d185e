"""Numbers with a unit, a percent sign, a currency or marks between thousands, and words that only look like them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.data.tables.affixes import parted
from commonground.data.tables.inspect import inspect_table
from commonground.data.tables.load import load_table
from commonground.data.tables.options import TableOptions
from commonground.data.tables.raw import raw_of_frame
from commonground.data.tables.schema import ColumnSchema, TableSchema
from commonground.errors import DataError


def frame(cells: Sequence[str], rows: int = 40) -> pd.DataFrame:
    index = np.arange(rows)
    return pd.DataFrame(
        {
            "who": [f"c{i % 2}" for i in index],
            "v": [cells[i % len(cells)] for i in range(rows)],
            "other": index % 7,
            "won": np.array(["yes", "no"])[index // 2 % 2],
        }
    )


def schema_of(table: pd.DataFrame, path: Path, **said: Any) -> TableSchema:
    table.to_csv(path, index=False)
    schema = cg.load_data(path, client_column="who", target="won", **said).schema
    assert schema is not None
    return schema


def column(schema: TableSchema) -> ColumnSchema:
    return next(one for one in schema.features if one.name == "v")


@pytest.mark.parametrize(
    ("word", "number", "affix"),
    [
        ("42.3%", "42.3", "%"),
        ("$1,204.50", "1,204.50", "$"),
        ("-$5", "-5", "$"),
        ("$ -5", "-5", "$"),
        ("($5)", "-5", "$"),
        ("1.234,50 €", "1.234,50", "€"),
        ("EUR 12", "12", "EUR"),
        ("5.1 kg", "5.1", "kg"),
        ("5.1\u00a0kg", "5.1", "kg"),
        ("3 rooms", "3", "room"),
        ("21.5°C", "21.5", "°C"),
        ("1 234", "1234", ""),
        ("1\u202f234,5", "1234,5", ""),
        ("1'234.5", "1234.5", ""),
        ("\u22125.5", "-5.5", ""),
        ("(5.50)", "-5.50", ""),
        ("1e5", "1e5", ""),
        ("2 years", "2", "year"),
        ("1 year", "1", "year"),
        ("2 Hrs", "2", "hr"),
        ("7 KG", "7", "kg"),
        ("5 mW", "5", "mW"),
        ("5 MW", "5", "MW"),
    ],
)
def test_a_number_and_its_unit(word: str, number: str, affix: str) -> None:
    assert parted(word) == (number, affix)


@pytest.mark.parametrize(
    "word",
    [
        "12A",
        "3G",
        "T1",
        "1st",
        "(5)",
        "(5.50",
        "12 34",
        "030 123",
        "5 Mar 2024",
        "1 PM",
        "12:30",
        "--5",
        "$5%",
        "abc",
        "-",
        "COP20",
        "CAD101",
        "12 Broadway",
        "1234 AB",
        "+48 601 234 567",
    ],
)
def test_no_number_and_its_unit(word: str) -> None:
    assert parted(word) is None
    assert parted("-" + " " * 10_000 + word) is None


@pytest.mark.parametrize(
    ("cells", "low", "high", "decimal", "affix"),
    [
        (["10.5%", "42.3%", "99%"], 10.5, 99, "point", "%"),
        (["$1,204.50", "$9,000.25"], 1204.5, 9000.25, "thousands", "$"),
        (["1.234,50 €", "5.000,25 €"], 1234.5, 5000.25, "comma", "€"),
        (["5.1 kg", "7 kg"], 5.1, 7, "point", "kg"),
        (["1 234", "5 678"], 1234, 5678, "point", ""),
        (["1'234.5", "5'678.25"], 1234.5, 5678.25, "point", ""),
        (["\u22125", "3"], -5, 3, "point", ""),
        (["(5.50)", "3.25"], -5.5, 3.25, "point", ""),
    ],
)
def test_numbers_with_a_unit_are_numbers(
    cells: list[str], low: float, high: float, decimal: str, affix: str, tmp_path: Path
) -> None:
    schema = schema_of(frame(cells), tmp_path / "t.csv")
    v = column(schema)
    assert (v.kind, v.low, v.high, v.decimal, v.affix) == ("number", low, high, decimal, affix)
    says = f"v: numbers with '{affix}', read as numbers" if affix else "v: "
    assert any(note.startswith(says) for note in schema.notes)
    stored = cg.load_data(frame(cells), client_column="who", target="won").schema
    assert stored is not None
    assert (column(stored).low, column(stored).affix) == (low, affix)
    assert TableSchema.from_json(schema.to_json()) == schema


def test_words_that_only_look_like_numbers_stay_categories(tmp_path: Path) -> None:
    for cells in (["12A", "12B", "13A"], ["3 oaks", "4 elms"], ["1st", "2nd"], ["T1", "T2"], ["1 PM", "2 AM"]):
        assert column(schema_of(frame(cells), tmp_path / "t.csv")).kind == "category", cells
    with pytest.raises(DataError, match=r"the comma in '1,204' may be a decimal one.*--kinds v=comma-number"):
        schema_of(frame(["$1,204", "$3,333"]), tmp_path / "t.csv")
    assert column(schema_of(frame(["$1,204", "$3,333"]), tmp_path / "t.csv", kinds="v=point-number")).high == 3333
    assert column(schema_of(frame(["10%", "20%"]), tmp_path / "t.csv", kinds="v=category")).kind == "category"


def test_numbers_of_several_units_are_left_out_with_the_reason(tmp_path: Path) -> None:
    several = [*(f"{i}.5 kg" for i in range(25)), "300 g"]
    schema = schema_of(frame(several), tmp_path / "t.csv")
    assert schema.dropped["v"] == "holds numbers with units ('kg', 'g')"
    # Of a handful of values each can be an input.
    few = schema_of(frame(["64 GB", "128 GB", "1 TB"]), tmp_path / "few.csv")
    assert column(few).categories == ("1 TB", "128 GB", "64 GB")
    shown = {one.name: one.suspicious for one in inspect_table(tmp_path / "t.csv").columns}
    assert shown["v"] == "holds numbers with units ('kg', 'g'): left out; write all of them in one"


def test_a_run_reads_the_unit_of_its_training_and_no_other(tmp_path: Path) -> None:
    table = frame(["5 kg", "7.5 kg", "6 kg", "9 kg"])
    run = cg.train("fedavg", cg.load_data(table, client_column="who", target="won"), model="linear", rounds=1)
    new = table.head(4)
    written = cg.predict_rows(run, new)
    pd.testing.assert_frame_equal(written, cg.predict_rows(run, new.assign(v=[5, 7.5, 6, 9])))
    for cell, says in (
        ("5 g", "'5 g' has the unit 'g', and the column's numbers have 'kg'"),
        ("5", "'5' has no unit, and the column's numbers have 'kg'"),
    ):
        with pytest.raises(DataError, match=says):
            cg.predict_rows(run, new.assign(v=cell))
    plain = cg.load_data(frame(["5", "7", "9"]), client_column="who", target="won")
    run = cg.train("fedavg", plain, model="linear", rounds=1)
    with pytest.raises(DataError, match=r"'\$5' has the unit '\$', and the column's numbers have none"):
        cg.predict_rows(run, new.assign(v="$5"))


@pytest.mark.parametrize(
    "cells",
    [
        ["01.11.10", "01.11.20", "10.12.30", "10.11.11", "01.13.11", "62.01.11"],  # products, no days
        ["10.11.12", "10.12.14", "11.02.10", "10.45.99"],  # versions
        ["8/10/12", "10/12/14", "12/14/16", "14/16/18"],
        ["01.11.01", "01.12.02", "02.10.01", "04.05.03"],  # every one may be a day, and none has to
        ["560 001", "560 034", "600 028"],  # postcodes
        ["612 345 678", "22 123 45 67"],
        ["<1%", "5%", "7%", "9%"],
        ["4 cylinders", "6 cylinders", "other"],
        ["COP20", "COP21"],
        ["12m", "7s"],
    ],
)
def test_names_in_which_numbers_stand_are_no_numbers(cells: list[str], tmp_path: Path) -> None:
    assert column(schema_of(frame(cells), tmp_path / "t.csv")).kind == "category"


def test_telephones_name_their_rows(tmp_path: Path) -> None:
    for pattern in ("{} 345 {}", "+48 {} 345 {}"):
        cells = [pattern.format(600 + i, 100 + 7 * i) for i in range(40)]
        assert schema_of(frame(cells), tmp_path / "t.csv").dropped["v"] == "names a row"


@pytest.mark.parametrize(
    ("cells", "affix"),
    [
        ([*(f"{i} years" for i in range(2, 10)), "1 year"], "year"),
        (["1 star", "2 stars", "5 stars"], "star"),
        (["5 kg", "6 KG", "7 Kg"], "kg"),
        (["0", "0", "0", *(f"{i}%" for i in range(2, 9))], "%"),  # nothing is nothing in any unit
    ],
)
def test_one_unit_in_several_spellings(cells: list[str], affix: str, tmp_path: Path) -> None:
    found = column(schema_of(frame(cells), tmp_path / "t.csv"))
    assert (found.kind, found.affix) == ("number", affix)


def test_a_column_of_numbers_but_for_a_word_says_so(tmp_path: Path) -> None:
    cells = [f"{i}.25 kg" for i in range(39)]
    schema = schema_of(frame([*cells, "heavy"]), tmp_path / "t.csv")
    assert schema.dropped["v"] == "holds numbers with units ('kg', beside other words)"


def test_texts_of_a_typed_file_that_are_codes_stay_so() -> None:
    for cells in (["01.1", "10.2", "62.0"], [f"{10**19 + i}" for i in range(5)], [*map(str, range(19)), "unk"]):
        schema = cg.load_data(frame(cells), client_column="who", target="won").schema
        assert schema is not None
        assert column(schema).kind == "category"


def test_a_target_with_a_unit_is_a_number(tmp_path: Path) -> None:
    values = [f"{10 + i % 9}.5%" for i in range(40)]
    table = frame(["1", "2", "3"]).drop(columns="won").assign(share=values)
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match="--task regression"):
        cg.load_data(tmp_path / "t.csv", client_column="who", target="share")
    data = cg.load_data(tmp_path / "t.csv", client_column="who", target="share", task="regression")
    assert data.schema is not None
    assert data.schema.target_affixes == ("%",)
    assert "share: numbers with '%', read as numbers" in data.schema.notes
    options = TableOptions(client_column="who")
    again = load_table(tmp_path / "t.csv", schema=data.schema, options=options)
    assert again.y_train.max() == 18.5
    with pytest.raises(DataError, match="column 'share': '5' has no unit, and the column's numbers have '%'"):
        load_table(raw_of_frame(table.assign(share="5")), schema=data.schema, options=options)


@pytest.mark.parametrize(
    ("cell", "rows", "says"),
    [
        ("-", 8, "'-' is no number; if it stands for none, leave the cell empty (8 rows have it)"),
        ("#N/A", 8, "'#N/A' is no number; if it stands for none"),
        ("odd", 1, "'odd' is no number"),
        ("$5", 1, "'$5' has the unit '$', and the column's numbers have none"),
        ("12:30", 1, "'12:30' is a time of day or a duration, and the column holds plain numbers"),
        ("1e39", 1, "'1e39' is too large (at most 3.4e38)"),
        ("1e400", 1, "'1e400' is too large (at most 3.4e38)"),
        ("inf", 1, "'inf' is not a finite number"),
    ],
)
def test_what_is_wrong_with_a_cell_among_numbers_is_said(cell: str, rows: int, says: str, tmp_path: Path) -> None:
    table = frame([f"{i}.5" for i in range(40)])
    table.loc[: rows - 1, "v"] = cell
    with pytest.raises(DataError) as error:
        schema_of(table, tmp_path / "t.csv")
    assert str(error.value).endswith(f"line 2, column 'v': {says}") or (rows > 1 and says in str(error.value))


@pytest.mark.parametrize("kind", ["frame", "jsonl", "parquet"])
def test_texts_that_are_numbers_are_read_as_a_csv_file_has_them(kind: str, tmp_path: Path) -> None:
    """And codes and declared categories are not."""
    index = np.arange(40)
    table = frame(["1"]).assign(
        v=[f"0.{100 + i}" for i in index],
        few=[str(1 + i % 3) for i in index],
        at=[f"0{i % 9}:30" for i in index],
        zip=[f"0{i % 3}115" for i in index],
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    path = tmp_path / f"t.{kind}"
    if kind == "jsonl":
        table.to_json(path, orient="records", lines=True)
    elif kind == "parquet":
        table.to_parquet(path)
    read = cg.load_data(table if kind == "frame" else path, client_column="who", target="won")
    cells = cg.load_data(tmp_path / "t.csv", client_column="who", target="won", kinds="zip=category")
    assert read.schema is not None
    assert cells.schema is not None
    assert read.schema.features == cells.schema.features
    assert "few: texts that are numbers, read as numbers; else say --kinds few=category" in read.schema.notes
    declared = cg.load_data(table.astype({"few": "category"}), client_column="who", target="won").schema
    assert declared is not None
    assert {one.name: one.kind for one in declared.features}["few"] == "category"


@pytest.mark.parametrize("cells", [["TRUE", "true", "False"], ["Yes", "No", "no"], ["T", "f", "F"]])
def test_truths_in_several_spellings_are_truths(cells: list[str], tmp_path: Path) -> None:
    assert column(schema_of(frame(cells), tmp_path / "t.csv")).kind == "boolean"
