"""Letters with marks that a file writes as one character or as two, and characters that nobody sees."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.data.tables.inspect import inspect_table
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.spelling import places_of, spelt_twice
from commonground.serve.rows import reader_of


def two(text: str) -> str:
    """Its letters with marks as two characters each."""
    return unicodedata.normalize("NFD", text)


def frame(*, size: str = "größe") -> pd.DataFrame:
    index = np.arange(40)
    return pd.DataFrame(
        {
            "käufer": [("Zoë", two("Zoë"), "Max", "Max")[i % 4] for i in index],
            size: index % 7,
            "stadt": [("Köln", two("Köln"), "Bonn")[i % 3] for i in index],
            "wahl": [("für", two("für"), "wider")[i // 2 % 3] for i in index],
        }
    )


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "frame"])
def test_both_ways_of_writing_a_letter_are_one(kind: str, tmp_path: Path) -> None:
    table, path = frame(size=two("größe")), tmp_path / f"t.{kind}"
    if kind == "csv":
        table.to_csv(path, index=False)
    elif kind == "jsonl":
        table.to_json(path, orient="records", lines=True, force_ascii=False)
    elif kind == "parquet":
        table.to_parquet(path)
    source = table if kind == "frame" else path
    data = cg.load_data(source, client_column=two("käufer"), target="wahl", kinds="größe=number", drop=two("größe"))
    assert data.schema is not None
    assert data.client_names == ("Max", "Zoë")
    assert data.class_names == ("für", "wider")
    assert [(one.name, one.categories) for one in data.schema.features] == [("stadt", ("Bonn", "Köln"))]
    assert data.schema.dropped == {"größe": "dropped"}
    if kind == "csv":
        assert inspect_table(path, client_column="käufer", target=two("wahl")).clients == 2


def test_a_run_of_before_knows_what_it_called_otherwise(tmp_path: Path) -> None:
    data = cg.load_data(frame(), client_column="käufer", target="wahl")
    assert data.schema is not None
    before = TableSchema.from_json(two(data.schema.to_json()))
    assert before.needed == ["größe", "stadt"]
    assert before.client_column == "käufer"
    assert places_of(["Köln", "Bonn"], before.features[1].categories) == [1, 0]
    assert json.loads(before.to_json())["targets"] == ["wahl"]


def test_a_service_knows_both_ways(tmp_path: Path) -> None:
    run = cg.train("fedavg", cg.load_data(frame(), client_column="käufer", target="wahl"), model="linear", rounds=1)
    reader, trained = reader_of(run), run.trained
    row = {"größe": 3, "stadt": "Köln", "käufer": "Zoë"}
    one, told = reader.read(trained, [row], "Zoë", 1)
    other, also = reader.read(
        trained, [{two(name): two(str(cell)) if cell != 3 else 3 for name, cell in row.items()}], "Zoë", 1
    )
    np.testing.assert_array_equal(one, other)
    assert told == also == [()]
    pd.testing.assert_frame_equal(cg.predict_rows(run, frame()), cg.predict_rows(run, frame(size=two("größe"))))


def test_characters_of_no_width_are_told(tmp_path: Path) -> None:
    assert spelt_twice(["a\u200b", "b", "a"]) == ("a", "a\u200b")
    table = frame().assign(stadt=["Bonn", "Bonn\u200b"] * 20)
    notes = cg.load_data(table, client_column="käufer", target="wahl").about["notes"]
    assert any(note.startswith("stadt: 'Bonn' and 'Bonn\\u200b' are two categories") for note in notes)


def test_versions_that_are_one_number_are_told(tmp_path: Path) -> None:
    for cells, says in (("1.1 1.10 1.2", True), ("1.10 1.20 1.35", False), ("1.5 10 100", False)):
        frame().assign(stadt=[cells.split()[i % 3] for i in range(40)]).to_csv(tmp_path / "t.csv", index=False)
        notes = cg.load_data(tmp_path / "t.csv", client_column="käufer", target="wahl").about["notes"]
        told = "stadt: '1.10' and '1.1' are one number; if they are names, say --kinds stadt=category"
        assert (told in notes) is says
