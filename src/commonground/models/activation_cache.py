"""Hidden states below the first trained layer: they never change, so each sample's are computed once per run.

Rows are kept on the host, as are their numbers and lengths, one after the other without padding ("flat"), in memory
that forked workers share, or in a temporary file mapped into memory where there are many. What is kept does not depend
on the engine: a client's rows are computed together, in groups of equal length, whoever asks for them first.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["ActivationCache"]

IN_MEMORY = 1 << 31  # bytes; more go to a temporary file
GROUP_TOKENS = 1024  # tokens of one pass while filling: larger passes are no faster on a CPU


class ActivationCache:
    """A flat store of hidden states.

    Args:
        lengths: tokens of every row of the data set, by row number.
        width: numbers per token.
        dtype: of the numbers.
    """

    def __init__(self, lengths: np.ndarray, width: int, dtype: torch.dtype) -> None:
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._there = _shared(len(lengths), torch.uint8, 0)
        count = int(self.offsets[-1]) * width
        self._flat = _shared(count, dtype, IN_MEMORY).view(-1, width)

    @property
    def bytes(self) -> int:
        """Room for all rows; only what is filled takes memory."""
        return self._flat.numel() * self._flat.element_size()

    def has(self, numbers: Tensor) -> bool:
        """Whether all these rows are kept."""
        known = ((numbers >= 0) & (numbers < len(self._there))).all()
        return bool(known) and bool(self._there[numbers].all())

    def fill(self, numbers: Tensor, lengths: Tensor, compute: Callable[[Tensor], Tensor]) -> None:
        """Keep the rows that are not there yet.

        Args:
            numbers: [n] row numbers.
            lengths: [n] their tokens.
            compute: hidden states [g, length, width] of rows given by position (all of one length).
        """
        missing = torch.nonzero(self._there[numbers] == 0).squeeze(1)
        for length in lengths[missing].unique().tolist():
            same = missing[lengths[missing] == length]
            for group in same.split(max(1, GROUP_TOKENS // length)):
                states = compute(group).to(self._flat.dtype).cpu()
                for row, state in zip(numbers[group].tolist(), states, strict=True):
                    start = int(self.offsets[row])
                    self._flat[start : start + length] = state
                self._there[numbers[group]] = 1

    def take(self, numbers: Tensor, longest: int) -> Tensor:
        """Rows as a padded batch [n, longest, width]; padding repeats a real token, which attention masks out."""
        starts = self._starts(numbers).unsqueeze(1)
        sizes = torch.from_numpy(np.diff(self.offsets))[numbers].unsqueeze(1)
        position = torch.arange(longest, device="cpu").unsqueeze(0).minimum(sizes - 1)
        return self._flat[starts + position]

    def take_packed(self, numbers: Tensor, row: Tensor, position: Tensor) -> Tensor:
        """Tokens [1, T, width]: token t stands at ``position[t]`` of row ``numbers[row[t]]``."""
        return self._flat[self._starts(numbers)[row] + position].unsqueeze(0)

    def _starts(self, numbers: Tensor) -> Tensor:
        return torch.from_numpy(self.offsets)[numbers]


def _shared(count: int, dtype: torch.dtype, in_memory: int) -> Tensor:
    """Zeros that forked processes share; pages come into being when they are written."""
    size = max(1, count) * dtype.itemsize
    if in_memory and size > in_memory:
        with tempfile.TemporaryFile(prefix="commonground-hidden-") as file:  # has no name, so nothing is left behind
            os.truncate(file.fileno(), size)
            return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=dtype, count=max(1, count))[:count]
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype, count=max(1, count))[:count]
