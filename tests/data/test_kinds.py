"""A name says what kind of data it stands for, and the kind what it takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from commonground import load_data, train
from commonground.cli import main
from commonground.data import kind_of
from commonground.data.tables.inspect import inspect_table
from commonground.errors import ConfigError

TABLE, TEXTS = "a,label\n1,2\n", "text\tlabel\nfine\t1\n"


def pictures(folder: Path) -> str:
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            place = folder / split / name
            place.mkdir(parents=True)
            Image.fromarray(np.zeros((4, 4, 3), dtype=np.uint8)).save(place / "0.png")
    return str(folder)


def file(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def test_every_name_has_one_kind(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    file(tmp_path / "tables" / "a.csv", TABLE)
    kinds = {
        "digits": "NamedSource",
        "sst2": "NamedSource",
        "hf:owner/name": "Hub",
        pictures(tmp_path / "pictures"): "ImageFolder",
        str(tmp_path / "tables"): "TableFile",
        file(tmp_path / "t.csv", TABLE): "TableFile",
        file(tmp_path / "t.tsv", TABLE.replace(",", "\t")): "TableFile",
        file(tmp_path / "x.tsv", TEXTS): "TextTable",
        file(tmp_path / "x.jsonl", '{"text": "fine", "label": 1}\n'): "TextTable",
        file(tmp_path / "t.jsonl", '{"a": 1, "label": 1}\n'): "TableFile",
        file(tmp_path / "i.jsonl", '{"instruction": "a", "output": "b"}\n'): "InstructionFile",
        "there/is/none.json": "InstructionFile",
        "digit": "Unknown",
    }
    assert {name: type(kind_of(name)).__name__ for name in kinds} == kinds


@pytest.mark.parametrize(
    ("name", "partition", "takes_tokenizer"),
    [
        ("digits", "iid", False),
        ("cifar10", "iid", False),
        ("sent140", "column:user", False),
        ("some.csv", "iid", True),
        ("hf:owner/name", "iid", True),
    ],
)
def test_what_a_kind_says_of_itself(name: str, partition: str, takes_tokenizer: bool) -> None:
    kind = kind_of(name)
    assert (kind.partition, kind.takes_tokenizer) == (partition, takes_tokenizer)
    assert not kind.needs_tokenizer


def test_a_tokenizer_makes_texts_of_tables_and_of_the_hub() -> None:
    assert kind_of("some.csv").as_read(None).texts is False
    assert kind_of("some.csv").as_read("hf:words").texts is True
    read = kind_of("hf:owner/name")
    assert (read.as_read(None).columns, read.as_read("hf:words").columns) == (True, True)


ROWS = [{"text": i % 7, "sentence": 3 * i, "who": f"w{i % 3}", "left": "no" if i % 2 else "yes"} for i in range(30)]


@pytest.mark.parametrize("form", ["tsv", "tsv.gz", "jsonl", "jsonl.gz", "csv"])
@pytest.mark.parametrize("words", [False, True])
def test_a_table_may_have_a_column_called_text(form: str, words: bool, tmp_path: Path) -> None:
    """Of numbers it is none of texts, and of words not to those who say their target and name no model of texts."""
    rows = [{**row, "text": "many" if i % 7 > 2 else "few", "instruction": i % 7} for i, row in enumerate(ROWS)]
    table, path = pd.DataFrame(rows if words else ROWS), tmp_path / f"t.{form}"
    if "jsonl" in form:
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, index=False, sep="\t" if "tsv" in form else ",")
    data = load_data(path, client_column="who", target="left", drop="sentence")
    assert data.schema is not None
    assert [feature.name for feature in data.schema.features] == ["text", *(["instruction"] if words else [])]
    command = shlex.split(inspect_table(path, client_column="who", target="left").command)[1:]
    assert main([*command, "--rounds", "1", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    if not words:
        assert type(kind_of(path)).__name__ == "TableFile"


def test_texts_are_texts_whatever_packs_them(tmp_path: Path) -> None:
    lines = [f"a fine {'day' if i % 2 else 'night'}\t{i % 2}" for i in range(8)]
    for name in ("t.tsv", "t.tsv.gz"):
        pd.DataFrame([line.split("\t") for line in lines], columns=["text", "label"]).to_csv(
            tmp_path / name, sep="\t", index=False
        )
        with pytest.raises(ConfigError, match=r"are texts and need a tokenizer: .*; if it is a table of numbers and"):
            load_data(tmp_path / name, 2)


def test_no_file_here_decides_what_loaded_data_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data have the base name of their file, and another file may have it where the command runs."""
    (tmp_path / "d").mkdir()
    pd.DataFrame(ROWS).to_csv(tmp_path / "d" / "a.tsv", sep="\t", index=False)
    data = load_data(tmp_path / "d" / "a.tsv", client_column="who", target="left")
    monkeypatch.chdir(tmp_path)
    assert train("fedavg", data, rounds=1).config.model == "mlp"
    file(tmp_path / "a.tsv", TEXTS)
    assert train("fedavg", data, rounds=1).config.model == "mlp"


def test_loaded_pictures_have_the_model_of_named_ones(tmp_path: Path) -> None:
    for place in (tmp_path / who / kind / f"{n}.png" for who in "ab" for kind in "xy" for n in range(4)):
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save(place)
    data = load_data(tmp_path, partition="column:client")
    assert train("fedavg", data, rounds=1).config.model == "cnn"
