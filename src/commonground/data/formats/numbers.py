"""Samples of numbers: rows, series, images."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from commonground.data.arrays import Array
from commonground.data.formats.base import Given, InputFormat
from commonground.data.inputs import Inputs
from commonground.errors import DataError

__all__ = ["Numbers", "one_array"]


class Numbers(InputFormat):
    """Numbers [N, …] as bytes, float32 or float64; images are [N, height, width, channels]. The input ``x``."""

    kind = "numbers"
    called = "numbers"

    @classmethod
    def recognises(cls, x: Array) -> bool:
        """See :meth:`InputFormat.recognises`."""
        return x.dtype in (np.uint8, np.float32, np.float64)

    @property
    def image(self) -> bool:
        """Whether samples are images, which a model is given with their channels first."""
        return len(self.sample_shape) == 3

    @property
    def shape(self) -> tuple[int, ...]:
        """See :attr:`InputFormat.shape`."""
        s = self.sample_shape
        return (s[2], s[0], s[1]) if self.image else s

    def check_noise(self, name: str) -> None:
        """See :meth:`InputFormat.check_noise`: numbers take it."""

    def like(self, given: Given, where: str) -> Array:
        """See :meth:`InputFormat.like`; rows of as many numbers take the samples' shape."""
        rows, shape = one_array(given, where), self.sample_shape
        if rows.shape[1:] != shape and rows.ndim >= 2 and math.prod(rows.shape[1:]) == math.prod(shape):
            rows = rows.reshape(len(rows), *shape)
        if rows.shape[1:] != shape:
            raise DataError(f"samples of shape {rows.shape[1:]} were given, but the run was trained on {shape}")
        return rows

    @property
    def names(self) -> tuple[str, ...]:
        """See :attr:`InputFormat.names`."""
        return ("samples",)

    def tensors(self, stored: Array) -> Inputs:
        """See :meth:`InputFormat.tensors`."""
        return {"samples": torch.from_numpy(stored)}

    def make(self, stored: Inputs, dtype: torch.dtype, noise: Tensor | None = None) -> Inputs:
        """See :meth:`InputFormat.make`."""
        x = stored["samples"].to(torch.float64 if self.preprocess.in_double else dtype)
        if self.preprocess.scale != 1.0:
            x = x * self.preprocess.scale
        if noise is not None:
            x = x - noise
        if self.preprocess.mean:
            x = x - _constant(self.preprocess.mean, x)
        if self.preprocess.std:
            x = x / _constant(self.preprocess.std, x)
        return {"x": x.to(dtype)}

    def arrange(self, inputs: Inputs) -> Inputs:
        """See :meth:`InputFormat.arrange`."""
        return {"x": inputs["x"].movedim(-1, -3)} if self.image else inputs

    def black(self, dtype: torch.dtype) -> Tensor:
        """See :meth:`InputFormat.black`."""
        black = super().black(dtype)
        if self.preprocess.mean:
            black = black - _constant(self.preprocess.mean, black)
        return black / _constant(self.preprocess.std, black) if self.preprocess.std else black


def _constant(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype).to(like.device)


def one_array(given: Given, where: str) -> Array:
    """Raw samples of a run whose samples are one array.

    Raises:
        DataError: they are several arrays, or no numbers.
    """
    if isinstance(given, Mapping) or (isinstance(given, np.ndarray) and given.dtype.names):
        raise DataError(f"{where} was trained on samples that are one array, and {type(given).__name__} was given")
    rows = np.asarray(given)
    if rows.dtype.kind not in "fiub" or rows.ndim == 0:
        raise DataError(f"samples must be an array of numbers, not {type(given).__name__} of {rows.dtype}")
    return rows
