"""Data of the Hugging Face hub."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from commonground.data import (
    load_data,
    load_source,
)
from commonground.errors import ConfigError, DataError
from tests.token_rows import tokenizer


class Table:
    """What the parts of a data set of the hub offer."""

    def __init__(self, columns: dict[str, list[Any]], names: list[str] | None = None) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {
            name: types.SimpleNamespace(names=names) if name == "label" and names else 0 for name in columns
        }

    def __len__(self) -> int:
        return len(self.columns[self.column_names[0]])

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def hub(monkeypatch: pytest.MonkeyPatch, found: Any) -> list[tuple[str, ...]]:
    """A package ``datasets`` that knows one data set; returns what it is asked for."""
    asked: list[tuple[str, ...]] = []

    def load_dataset(*names: str, download_config: Any = None) -> Any:
        asked.append(names)
        if isinstance(found, Exception):
            raise found
        return found

    module = types.ModuleType("datasets")
    vars(module).update(load_dataset=load_dataset, DownloadConfig=lambda **settings: settings)
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def test_data_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    train = Table({"sentence": ["a", "b c", "d", "e"], "label": [0, 1, 1, 0], "user": list("xyxy")}, ["no", "yes"])
    dev = Table({"sentence": ["e", "a"], "label": [1, 0], "user": list("xy")}, ["no", "yes"])
    hidden = Table({"sentence": ["e"], "label": [-1], "user": ["x"]}, ["no", "yes"])
    asked = hub(monkeypatch, {"train": train, "validation": dev, "test": hidden})
    data = load_data("hf:glue/sst2", partition="column:user", tokenizer=tokenizer())
    assert asked == [("nyu-mll/glue", "sst2")]
    assert (data.class_names, data.y_train.tolist(), len(data.x_test)) == (("no", "yes"), [0, 1, 1, 0], 2)
    hub(monkeypatch, {"train": Table({"text": list("abcdabcd"), "label": list("xyxyxyxy")})})
    source = load_source("hf:me/mine", download=False, tokenizer=tokenizer())
    assert (source.class_names, len(source.x_train), len(source.x_test)) == (("x", "y"), 6, 2)
    hub(monkeypatch, {"train": Table({"instruction": list("abcdabcd"), "output": list("abcdabcd")})})
    assert load_source("hf:me/mine", tokenizer=tokenizer("llama")).task.name == "answers"


def test_refusals_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer()
    hub(monkeypatch, OSError("no way there.\nand more"))
    with pytest.raises(DataError, match=r"'hf:me/mine' could not be had from the Hugging Face hub: no way there$"):
        load_source("hf:me/mine", tokenizer=words)
    hub(monkeypatch, {"test": Table({"text": ["a"]})})
    with pytest.raises(DataError, match="have no part 'train'; their parts are: test"):
        load_source("hf:me/mine", tokenizer=words)
    hub(monkeypatch, {"train": Table({"text": ["a"]})})
    with pytest.raises(DataError, match="hf:me/mine:train has no column 'label'; its columns are: text"):
        load_source("hf:me/mine", tokenizer=words)
    with pytest.raises(DataError, match="names no data set of the hub"):
        load_source("hf:a/b/c/d", tokenizer=words)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"need the extra: pip install 'commonground\[datasets\]'"):
        load_source("hf:me/mine", tokenizer=words)
