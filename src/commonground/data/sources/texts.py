"""From texts to samples: what every source of texts goes through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from commonground.data.source import Source
from commonground.data.text.samples import TextData
from commonground.data.text.tokenizers import load_tokenizer
from commonground.data.text.tokens import pad_tokens, tokenize, told_of_full

__all__ = ["tokenised"]


def tokenised(data: TextData, tokenizer: Any, max_length: int = 128, vocab_size: int | None = None) -> Source:
    """A source of token rows, training and test rows of one length.

    Args:
        data: the texts.
        tokenizer: a transformers tokenizer, or what :func:`load_tokenizer` takes.
        max_length: most tokens of a row.
        vocab_size: of the model, if known.

    Raises:
        ConfigError, DataError: as :func:`load_tokenizer` and :func:`tokenize`.
    """
    tokenizer = load_tokenizer(tokenizer)
    train = tokenize(data.train, tokenizer, max_length, generative=data.task.generative, vocab_size=vocab_size)
    test = tokenize(
        data.test,
        tokenizer,
        max_length,
        generative=data.task.generative,
        vocab_size=vocab_size,
        first_number=len(data.train),
    )
    longest = max(train.shape[1], test.shape[1]) - 1
    full = told_of_full(max_length, train, test)
    about = data.origin.about
    notes = [*about.get("notes", ()), *([f"{full} (--set model.max_length says how many are)"] if full else [])]
    return Source(
        name=data.name,
        x_train=pad_tokens(train, longest),
        y_train=data.train.labels,
        x_test=pad_tokens(test, longest),
        y_test=data.test.labels,
        classes=len(data.class_names),
        class_names=data.class_names,
        train_columns=data.train.columns,
        test_columns=data.test.columns,
        task=data.task,
        origin=replace(data.origin, read={**about, "max_length": max_length, **({"notes": notes} if notes else {})}),
    )
