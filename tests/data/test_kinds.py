"""A name says what kind of data it stands for, and the kind what it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commonground.data import kind_of

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
    ("name", "model", "partition", "takes_tokenizer"),
    [
        ("digits", "mlp", "iid", False),
        ("cifar10", "cnn", "iid", False),
        ("sent140", "lstm", "column:user", False),
        ("some.csv", "mlp", "iid", True),
        ("hf:owner/name", "mlp", "iid", True),
    ],
)
def test_what_a_kind_says_of_itself(name: str, model: str, partition: str, takes_tokenizer: bool) -> None:
    kind = kind_of(name)
    assert (kind.usual_model, kind.partition, kind.takes_tokenizer) == (model, partition, takes_tokenizer)
    assert not kind.needs_tokenizer


def test_a_tokenizer_makes_texts_of_tables_and_of_the_hub() -> None:
    assert kind_of("some.csv").as_read(None).texts is False
    assert kind_of("some.csv").as_read("hf:words").texts is True
    read = kind_of("hf:owner/name")
    assert (read.as_read(None).columns, read.as_read("hf:words").columns) == (True, True)
