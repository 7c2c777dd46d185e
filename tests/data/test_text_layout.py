"""Texts as rows of tokens: the layout by hand, and the federated data set that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commonground.data import (
    FederatedDataset,
    Preprocess,
    limit_samples,
    load_data,
    tokenize,
)
from commonground.data.text import pad_tokens
from commonground.data.validation import validation_split
from commonground.errors import ConfigError, DataError
from commonground.tasks import AnswerTokens, Classification
from tests.token_rows import ID, numbers, pairs, singles, tokenizer


def test_a_pair_by_hand() -> None:
    x = tokenize(pairs([("a good film", "b"), ("c", "d odd")]), tokenizer(), first_number=7)
    first = [(7, 7), *((n, 0) for n in numbers("[CLS] a good film [SEP]")), *((n, 1) for n in numbers("b [SEP]"))]
    second = [(8, 6), *((n, 0) for n in numbers("[CLS] c [SEP]")), *((n, 1) for n in numbers("d [UNK] [SEP]")), (-1, 0)]
    assert x.dtype == np.int32
    assert x.tolist() == [[list(cell) for cell in first], [list(cell) for cell in second]]


def test_a_tokenizer_without_segments_marks_nothing() -> None:
    x = tokenize(pairs([("a good film", "b")]), tokenizer("roberta"))
    assert x[0, 1:, 0].tolist() == numbers("[CLS] a good film [SEP] b [SEP]")
    assert not x[0, 1:, 1].any()


def test_a_long_pair_loses_tokens_of_its_longer_text() -> None:
    x = tokenize(pairs([("a b c d e", "good film")]), tokenizer(), max_length=7)
    assert x[0, 1:, 0].tolist() == numbers("[CLS] a b [SEP] good film [SEP]")
    x = tokenize(singles("a b c d e"), tokenizer(), max_length=4)
    assert x[0].tolist() == [[0, 4], *([n, 0] for n in numbers("[CLS] a b [SEP]"))]


def test_texts_come_back() -> None:
    words = tokenizer()
    texts = ["a good film", "bad day", "e"]
    x = tokenize(singles(*texts), words)
    back = [words.decode(row[1 : 1 + row[0, 1], 0].tolist(), skip_special_tokens=True) for row in x]
    assert back == texts


def test_many_texts_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commonground.data.text.tokens._AT_A_TIME", 3)
    texts = ["a " * (1 + i % 5) for i in range(10)]
    x = tokenize(singles(*texts), tokenizer())
    assert x[:, 0, 0].tolist() == list(range(10))
    assert x[:, 0, 1].tolist() == [3 + i % 5 for i in range(10)]
    assert x.shape == (10, 1 + 7, 2)


def test_padding() -> None:
    x = tokenize(singles("a"), tokenizer())
    assert pad_tokens(x, 3) is x
    assert pad_tokens(x, 5)[0, 4:].tolist() == [[-1, 0], [-1, 0]]
    with pytest.raises(DataError, match="the rows have up to 3 tokens, more than 2"):
        pad_tokens(x, 2)


def token_data(**changes: Any) -> FederatedDataset:
    words = tokenizer()
    fields: dict[str, Any] = {
        "name": "tiny",
        "x_train": tokenize(singles("a b", "c d", "d e"), words),
        "y_train": np.array([0, 1, 0]),
        "x_test": tokenize(singles("e a", "b b"), words, first_number=3),
        "y_test": np.array([0, 1]),
        "classes": 2,
        "class_names": ("x", "y"),
        "train_index": np.array([0, 2, 1]),
        "train_offsets": np.array([0, 2, 3]),
        "test_index": np.array([1, 0]),
        "test_offsets": np.array([0, 1, 2]),
    }
    return FederatedDataset(**(fields | changes))


def changed(field: str, place: tuple[int, ...], value: int) -> dict[str, Any]:
    x = getattr(token_data(), field).copy()
    x[place] = value
    return {field: x}


def test_tokens_and_answers() -> None:
    data = token_data()
    assert data.tokens
    assert data.task == Classification()
    assert not data.task.generative
    assert data.vocabulary == 1 + ID["e"]
    assert "at most 4 tokens" in repr(data)
    answers = replace(data, task=AnswerTokens())
    assert answers.task.generative
    assert token_data(task="answers").task == answers.task
    assert answers.fingerprint() == token_data(task="answers").fingerprint() != data.fingerprint()
    assert "2 answers" in repr(answers)
    assert not load_data("digits", 5).tokens
    assert load_data("digits", 5).vocabulary == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (changed("x_train", (1, 0, 0), 5), "train sample 1 of 'tiny' has the number 5; .* this one is 1"),
        (changed("x_test", (0, 0, 0), 0), "test sample 0 of 'tiny' has the number 0; .* this one is 3"),
        (changed("x_train", (2, 0, 1), 0), "train sample 2 of 'tiny' .*its length is 0, not 1 to 4"),
        (changed("x_train", (2, 0, 1), 5), "train sample 2 of 'tiny' .*its length is 5, not 1 to 4"),
        (changed("x_train", (2, 4, 0), -1), "train sample 2 of 'tiny' .*needs 4 tokens of at least 0"),
        (
            changed("x_test", (1, 0, 1), 3),
            r"test sample 1 of 'tiny' .*3 tokens of at least 0, then padding of \(-1, 0\)",
        ),
        (changed("x_train", (0, 1, 1), -1), "train sample 0 of 'tiny' is no row of tokens"),
        ({"preprocess": Preprocess(scale=2.0)}, "'tiny' holds tokens, which take no preprocessing"),
        ({"x_train": np.zeros((3, 4), np.int32)}, r"train samples are int32 of shape \(3, 4\)"),
        ({"x_train": np.zeros((3, 5, 3), np.int32)}, r"train samples are int32 of shape \(3, 5, 3\)"),
        (
            {"x_train": np.zeros((3, 5, 2), np.float32), "x_test": np.zeros((2, 5, 2), np.float32), "task": "answers"},
            "'tiny' is float32; a language model learns from int32 tokens",
        ),
    ],
)
def test_other_layouts_are_refused(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        token_data(**changes)


def test_an_unknown_task_is_refused_by_name() -> None:
    known = "unknown task 'guess'; known are classification, answers, multilabel, regression$"
    with pytest.raises(ConfigError, match=known):
        token_data(task="guess")


def test_validation_and_limits_keep_tokens_and_task() -> None:
    data = FederatedDataset.from_arrays(
        [(tokenize(singles(*"abcd"), tokenizer()), np.array([0, 1, 0, 1])) * 2 for _ in range(3)], task="answers"
    )
    assert data.x_train[:, 0, 0].tolist() == list(range(12))  # numbered through, whatever the clients' arrays say
    assert data.x_test[:, 0, 0].tolist() == list(range(12, 24))
    judged = validation_split(data, 0.5, 0)
    assert judged.task == AnswerTokens()
    assert judged.x_test is judged.x_train
    assert replace(judged, x_test=judged.x_train.copy()).tokens  # as after a journey to another process
    assert limit_samples(data, "train", 2, 0).task == AnswerTokens()
