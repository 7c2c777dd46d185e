"""Texts as rows of tokens, in the layout of :mod:`commonground.data.text.tokens`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from commonground.data.arrays import AS_STORED, Array
from commonground.data.formats.base import Given, InputFormat
from commonground.data.formats.numbers import one_array
from commonground.data.inputs import Inputs
from commonground.errors import DataError

__all__ = ["TokenRows"]

_ROWS_PER_CHECK = 8192


class TokenRows(InputFormat):
    """Tokens int32 [N, 1 + L, 2]; the inputs ``input_ids``, ``marks``, ``lengths`` and ``numbers``."""

    kind = "tokens"
    called = "tokens"
    least_axes = 3
    numbered = True
    lengths_differ = True
    usual_optimizer = "adamw"  # SGD hardly moves adapters of language models

    @classmethod
    def recognises(cls, x: Array) -> bool:
        """See :meth:`InputFormat.recognises`."""
        return x.dtype == np.int32 and x.ndim == 3 and x.shape[1] >= 2 and x.shape[2] == 2

    def describe(self) -> str:
        """See :meth:`InputFormat.describe`."""
        return f"at most {self.sample_shape[0] - 1:,} tokens"

    def usual_lr(self, optimizer: str, small: bool) -> float:
        """See :meth:`InputFormat.usual_lr`."""
        # By SGD, factors of a 6-layer BERT learn nothing in some rounds at 0.01, and diverge in many layers at 0.1.
        return 0.03 if optimizer == "sgd" else 0.002

    def vocabulary(self, *samples: Array) -> int:
        """See :meth:`InputFormat.vocabulary`."""
        return max(int(x[:, 1:, 0].max()) for x in samples) + 1

    def check(self, name: str, x_train: Array, x_test: Array) -> None:
        """See :meth:`InputFormat.check`: also of rows that are numbered otherwise, and of preprocessing."""
        if self.preprocess != AS_STORED:
            raise DataError(f"{name!r} holds tokens, which take no preprocessing")
        same = x_test is x_train  # validation data: training rows in the place of test rows
        parts = [("train", x_train, 0)] + ([] if same else [("test", x_test, len(x_train))])
        for split, x, first in parts:
            bad = next(_wrong(x), None)
            if bad is not None:
                raise DataError(f"{split} sample {bad[0]} of {name!r} is no row of tokens: {bad[1]}")
            number = np.arange(first, first + len(x))
            for row in np.flatnonzero(x[:, 0, 0] != number)[:1]:
                if split == "test" and np.array_equal(x, x_train):
                    break
                raise DataError(
                    f"{split} sample {row} of {name!r} has the number {x[row, 0, 0]}; rows of tokens are numbered "
                    f"through, and this one is {number[row]}"
                )

    @classmethod
    def number_through(cls, x_train: Array, x_test: Array) -> None:
        """See :meth:`InputFormat.number_through`."""
        for rows, first in ((x_train, 0), (x_test, len(x_train))):
            if cls.recognises(rows):
                rows[:, 0, 0] = np.arange(first, first + len(rows))

    def like(self, given: Given, where: str) -> Array:
        """See :meth:`InputFormat.like`; texts may be longer or shorter than those of the training data."""
        rows = one_array(given, where)
        if not self.recognises(rows):
            raise DataError(
                f"{where} was trained on rows of tokens, int32 [n, 1 + L, 2], not {rows.dtype} {rows.shape}"
            )
        return rows

    def check_like(self, other: InputFormat, name: str, where: str) -> None:
        """See :meth:`InputFormat.check_like`; rows may be longer or shorter than those of the training data."""
        if other.kind != self.kind:
            raise DataError(f"{where} classifies texts, and {name} has none")

    @property
    def names(self) -> tuple[str, ...]:
        """See :attr:`InputFormat.names`."""
        return ("tokens",)

    def tensors(self, stored: Array) -> Inputs:
        """See :meth:`InputFormat.tensors`."""
        return {"tokens": torch.from_numpy(stored)}

    def make(self, stored: Inputs, dtype: torch.dtype, noise: Tensor | None = None) -> Inputs:
        """See :meth:`InputFormat.make`."""
        header, body = stored["tokens"][:, 0], stored["tokens"][:, 1:]
        return {
            "input_ids": body[..., 0].long(), "marks": body[..., 1].long(),
            "lengths": header[:, 1].long(), "numbers": header[:, 0].long(),
        }  # fmt: skip


def _wrong(x: Array) -> Iterator[tuple[int, str]]:
    """Rows that are not (number, length), then length times (token, mark), then padding of (-1, 0), and why; lazily."""
    longest = x.shape[1] - 1
    for start in range(0, len(x), _ROWS_PER_CHECK):
        part = x[start : start + _ROWS_PER_CHECK]
        length, token, mark = part[:, 0, 1], part[:, 1:, 0], part[:, 1:, 1]
        for row in np.flatnonzero((length < 1) | (length > longest)):
            yield start + int(row), f"its length is {length[row]}, not 1 to {longest}"
        inside = np.arange(longest) < length[:, np.newaxis]
        fine = np.where(inside, (token >= 0) & (mark >= 0), (token == -1) & (mark == 0)).all(axis=1)
        for row in np.flatnonzero(~fine):
            yield start + int(row), f"it needs {length[row]} tokens of at least 0, then padding of (-1, 0)"
