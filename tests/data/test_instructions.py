"""Instructions: prompts, their masks, answers and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commonground.data import (
    extract_answer,
    load_data,
    load_source,
    tokenize,
)
from commonground.data.sources.instructions import load_instructions
from commonground.data.text import CHOICES, alpaca_prompt
from commonground.errors import ConfigError, DataError
from commonground.tasks import AnswerTokens
from tests.token_rows import numbers, pairs, tokenizer


def objects(path: Path, rows: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(map(json.dumps, rows)) + "\n"
    path.write_text(lines if path.suffix == ".jsonl" else json.dumps(rows), encoding="utf-8")
    return path


def test_the_prompt_is_masked_and_the_answer_ends() -> None:
    texts = pairs([("a b c", "good film"), ("d", "e")])
    x = tokenize(texts, tokenizer("llama"), generative=True)
    first = [*((n, 0) for n in numbers("<s> a b c")), *((n, 1) for n in numbers("good film </s>"))]
    assert x[0].tolist() == [[0, 7], *map(list, first)]
    second = [*((n, 0) for n in numbers("<s> d")), *((n, 1) for n in numbers("e </s>")), *[(-1, 0)] * 3]
    assert x[1].tolist() == [[1, 4], *map(list, second)]


def test_a_long_prompt_loses_its_beginning_and_a_long_answer_its_end() -> None:
    words = tokenizer("llama")
    row = tokenize(pairs([("a b c d e", "good film")]), words, 6, generative=True)[0]
    assert row[1:, 0].tolist() == numbers("<s> d e good film </s>")
    assert row[1:, 1].tolist() == [0, 0, 0, 1, 1, 1]
    row = tokenize(pairs([("a b c d", "good film a b c d e a b c")]), words, 8, generative=True)[0]
    assert row[1:, 0].tolist() == numbers("<s> d good film a b c d")  # a quarter of 8 stays prompt; no end token
    assert row[1:, 1].tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    for length in range(3, 12):
        row = tokenize(pairs([("a b c d", "good film a b c d e a b c")]), words, length, generative=True)[0]
        assert row[0, 1] == length
        assert row[1, 1] == 0
        assert row[-1, 1] == 1


def test_alpaca_prompts() -> None:
    alone, full = alpaca_prompt("Say {hi}."), alpaca_prompt("Add.", "1 2")
    assert alone.endswith("\n\n### Instruction:\nSay {hi}.\n\n### Response:\n")
    assert full.endswith("\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n")
    assert "paired with an input" in full
    assert "paired with an input" not in alone


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_commonsense_files(tmp_path: Path, suffix: str) -> None:
    def row(i: int) -> dict[str, str]:
        answer = "true" if i % 2 else "false"
        text = f"the correct answer is {answer}"
        return {"instruction": "question : a", "input": "", "output": text, "answer": answer, "who": f"w{i % 3}"}

    path = objects(tmp_path / "boolq" / f"train{suffix}", [row(i) for i in range(12)])
    objects(tmp_path / "boolq" / f"test{suffix}", [row(i) for i in range(6)])
    words = tokenizer("llama")
    data = load_data(path, partition="column:who", tokenizer=words)
    assert data.name == f"boolq{suffix}"
    assert isinstance(data.task, AnswerTokens)
    assert data.task.generative
    assert data.class_names == ("false", "true")
    assert (len(data.x_train), len(data.x_test), data.client_names) == (12, 6, ("w0", "w1", "w2"))
    learnt = data.x_train[1, 1:][data.x_train[1, 1:, 1] == 1, 0]
    assert learnt.tolist() == numbers("the correct answer is true </s>")
    prompt = data.x_train[1, 1:][(data.x_train[1, 1:, 1] == 0) & (data.x_train[1, 1:, 0] >= 0), 0]
    assert prompt.tolist() == words(alpaca_prompt("question : a"))["input_ids"]
    by_answer = load_data(path, 2, classes_per_client=1, tokenizer=words)
    assert sorted((by_answer.class_counts() > 0).sum(axis=1).tolist()) == [1, 1]
    assert load_instructions(path, test=path).test.second == load_instructions(path).train.second


def test_alpaca_data_without_answers(tmp_path: Path) -> None:
    rows = [
        {"instruction": "a", "input": "b" if i % 2 else "", "output": "c d", "topic": f"t{i % 2}"} for i in range(16)
    ]
    path = objects(tmp_path / "alpaca.json", rows)
    data = load_data(path, 2, tokenizer=tokenizer("llama"))
    assert (data.classes, data.task, len(data.x_train), len(data.x_test)) == (1, AnswerTokens(), 12, 4)
    assert "classes" not in repr(data)
    assert "answers" not in repr(data)
    assert load_data(path, partition="column:topic", tokenizer=tokenizer("llama")).client_names == ("t0", "t1")
    split = objects(
        tmp_path / "s.jsonl", [{**row, "split": "test" if i > 13 else "train"} for i, row in enumerate(rows)]
    )
    assert len(load_data(split, 2, tokenizer=tokenizer("llama")).x_test) == 2


GOOD = {"instruction": "a", "output": "b"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no objects"),
        ([GOOD, "a"], "object 2 is str, not an object with fields"),
        ([GOOD, {"instruction": "a"}], "object 2: 'output' is missing"),
        ([GOOD, {"instruction": "a", "output": " "}], "object 2: 'output' is empty"),
        ([{"instruction": 3, "output": "b"}, GOOD], "object 1: 'instruction' is int, not text"),
        ([GOOD, {**GOOD, "answer": "x"}], "object 1: 'answer' is missing"),
        ([GOOD, {**GOOD, "split": "test"}], "object 1: 'split' is '', neither 'train' nor 'test'"),
        ([{**GOOD, "split": "test"}], "has 0 training objects and 1 test objects"),
    ],
)
def test_refused_instructions(tmp_path: Path, rows: Sequence[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_source(objects(tmp_path / "i.json", rows), tokenizer=tokenizer("llama"))


def test_refused_json(tmp_path: Path) -> None:
    words = tokenizer("llama")
    path = tmp_path / "i.json"
    with pytest.raises(DataError, match="there is no file"):
        load_source(path, tokenizer=words)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="could not be read as JSON: "):
        load_source(path, tokenizer=words)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="is not a list of objects"):
        load_source(path, tokenizer=words)
    objects(path, [GOOD] * 8)
    with pytest.raises(DataError, match="object 1: 'ward' is missing"):
        load_data(path, partition="column:ward", tokenizer=words)
    with pytest.raises(ConfigError, match="has no end token"):
        load_source(path, tokenizer=tokenizer("bert"))


def test_answers_are_read_back() -> None:
    assert extract_answer("boolq", "the correct answer is True.") == "true"
    assert extract_answer("piqa", "solution2 rather than solution1") == "solution2"
    assert extract_answer("social_i_qa", "Answer3") == "answer3"
    assert extract_answer("hellaswag", "it is ending4ending1") == "ending4"
    assert extract_answer("WinoGrande", "option1") == "option1"
    assert extract_answer("ARC-Challenge", "answer5") == extract_answer("openbookqa", "answer5") == "answer5"
    assert extract_answer("siqa", "answer4 or answer12") is None
    assert extract_answer("boolq", "") is None
    assert extract_answer(("x", "xy"), "an xy") == "xy"
    assert set(CHOICES) == {"boolq", "piqa", "siqa", "hellaswag", "winogrande", "arc-e", "arc-c", "obqa"}
    with pytest.raises(ConfigError, match="unknown commonsense task 'mmlu'; it is one of boolq, piqa"):
        extract_answer("mmlu", "a")
    with pytest.raises(ConfigError, match="not at least one text each"):
        extract_answer([], "a")


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"drop": "input"}, "of which the fields instruction, input and output are read; there are no columns to drop"),
        ({"label": "answer"}, "no table, so that there is no target column 'answer'"),
    ],
)
def test_instructions_have_no_columns_to_choose_from(
    tmp_path: Path, suffix: str, given: dict[str, Any], why: str
) -> None:
    path = tmp_path / f"i{suffix}"
    rows = [{"instruction": f"say {i}", "output": str(i)} for i in range(8)]
    path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)), "utf-8")
    with pytest.raises(ConfigError, match=why):
        load_data(path, 2, tokenizer="hf:nowhere", **given)
