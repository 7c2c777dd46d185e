"""Texts of the Hugging Face hub."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from commonground.data import TableOptions, load_data, load_source
from commonground.data.sources.hub import load_hub
from commonground.errors import ConfigError, DataError
from tests.token_rows import tokenizer

datasets = pytest.importorskip("datasets")


def part(columns: dict[str, list[Any]], **classes: list[str]) -> Any:
    """A part of a data set; the named columns are numbers of these classes."""
    made = datasets.Dataset.from_dict(columns)
    for name, words in classes.items():
        made = made.cast_column(name, datasets.ClassLabel(names=words))
    return made


def hub(monkeypatch: pytest.MonkeyPatch, found: Any) -> list[tuple[str, ...]]:
    """A hub that has one data set; returns what it is asked for."""
    asked: list[tuple[str, ...]] = []

    def load_dataset(*names: str, download_config: Any = None) -> Any:
        asked.append(names)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_data_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["no", "yes"]
    train = part({"sentence": ["a", "b c", "d", "e"], "label": [0, 1, 1, 0], "user": list("xyxy")}, label=words)
    dev = part({"sentence": ["e", "a"], "label": [1, 0], "user": list("xy")}, label=words)
    hidden = part({"sentence": ["e"], "label": [-1], "user": ["x"]}, label=words)
    asked = hub(monkeypatch, {"train": train, "validation": dev, "test": hidden})
    data = load_data("hf:glue/sst2", partition="column:user", tokenizer=tokenizer())
    assert asked == [("nyu-mll/glue", "sst2")]
    assert (data.class_names, data.y_train.tolist(), len(data.x_test)) == (("no", "yes"), [0, 1, 1, 0], 2)
    assert data.name == "hf:glue/sst2"
    hub(monkeypatch, {"train": part({"text": list("abcdabcd"), "label": list("xyxyxyxy")})})
    source = load_source("hf:me/mine", download=False, tokenizer=tokenizer())
    assert (source.class_names, len(source.x_train), len(source.x_test)) == (("x", "y"), 6, 2)


def test_instructions_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"instruction": list("abcdabcd"), "output": list("abcdabcd")}
    hub(monkeypatch, {"train": part(rows)})
    assert load_source("hf:me/mine", tokenizer=tokenizer("llama")).task.name == "answers"
    hub(monkeypatch, {"train": part(rows), "test": part({name: cells[:3] for name, cells in rows.items()})})
    read = load_hub("hf:me/mine")
    assert (len(read.train), len(read.test)) == (8, 3)
    with pytest.raises(ConfigError, match=r"are instructions and answers, .* there are no columns to drop"):
        load_hub("hf:me/mine", options=TableOptions(drop=("x",)))


def test_it_is_read_as_a_table_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is missing is refused or left out as there, and numbers that are equal are one class."""
    rows: dict[str, list[Any]] = {
        "text": [f"text {n}" for n in range(12)], "label": [0, 1.0, 2] * 4, "who": ["x", "y"] * 6
    }  # fmt: skip
    hub(monkeypatch, {"train": part(rows)})
    assert load_hub("hf:me/mine").class_names == ("0", "1", "2")
    words = ["bad", "good", "so"]
    named = part({**rows, "label": [0, None, -1, *[1] * 9]}, label=words)
    hub(monkeypatch, {"train": named})
    with pytest.raises(DataError, match=r"hf:me/mine, row 2, column 'label': the cell is empty \(2 cells"):
        load_hub("hf:me/mine")
    dropped = load_hub("hf:me/mine", options=TableOptions(missing_target="drop"))
    assert (len(dropped.train) + len(dropped.test), dropped.class_names) == (10, ("bad", "good"))
    for column, empty in (("text", ": the text 'text' is empty"), ("who", ", column 'who': the cell is empty")):
        hub(monkeypatch, {"train": part({**rows, column: [None, *rows[column][1:]]})})
        with pytest.raises(DataError, match=f"hf:me/mine, row 1{empty}"):
            load_hub("hf:me/mine", client_column="who")
    hub(monkeypatch, {"train": part({**rows, "who": [0, 1] * 6}, who=["anna", "ben"])})
    assert set(load_hub("hf:me/mine", client_column="who").train.columns["who"]) == {"anna", "ben"}


def test_refusals_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer()
    hub(monkeypatch, OSError("no way there.\nand more"))
    with pytest.raises(DataError, match=r"'hf:me/mine' could not be had from the Hugging Face hub: no way there$"):
        load_source("hf:me/mine", tokenizer=words)
    hub(monkeypatch, {"test": part({"text": ["a"]})})
    with pytest.raises(DataError, match="has no part 'train'; its parts are: test"):
        load_source("hf:me/mine", tokenizer=words)
    hub(monkeypatch, {"train": part({"text": ["a"]})})
    with pytest.raises(DataError, match="hf:me/mine has no column 'label'; its columns are: text"):
        load_source("hf:me/mine", tokenizer=words)
    with pytest.raises(DataError, match="names no data set of the hub"):
        load_source("hf:a/b/c/d", tokenizer=words)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"need the extra: pip install 'commonground\[datasets\]'"):
        load_source("hf:me/mine", tokenizer=words)
