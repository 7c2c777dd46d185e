"""Finished runs on texts, for tests of what becomes of them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from commonground.cli import main
from tests.language import tiny_model
from tests.text_files import instructions_file, pairs_file, save_tokenizer

SET = ["--set", "model.rank=2", "--set", "model.layers=1-2", "--set", "model.max_length=24", "--workers", "1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, data and finished runs ``pairs`` (bert) and ``answers`` (llama-lm)."""
    folder = tmp_path_factory.mktemp("texts")
    pairs_file(folder / "pairs.tsv")
    instructions_file(folder / "answers.json")
    for kind in ("bert", "llama-lm"):
        tiny_model(kind, folder / kind)
        save_tokenizer(folder / kind, kind == "llama-lm")
    common = ["--clients", "4", "--rounds", "2", "--lr", "0.3", "--quiet", *SET]
    data = ["--data", str(folder / "pairs.tsv"), "--model", f"hf:{folder / 'bert'}"]
    assert main(["train", "rolora", *data, *common, "--out", str(folder / "pairs")]) == 0
    data = ["--data", str(folder / "answers.json"), "--model", f"hf:{folder / 'llama-lm'}"]
    assert main(["train", "rolora", *data, *common, "--out", str(folder / "answers")]) == 0
    return folder


def read_table(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines()))
