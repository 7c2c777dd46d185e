"""Stored samples as what a model is given: named tensors, made here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.data.arrays import AS_STORED, Array, Preprocess
from commonground.errors import DataError

__all__ = ["InputFormat", "Inputs", "chunks", "each", "first_of", "pack_named", "select", "to_device"]

Inputs = dict[str, Tensor]
"""A batch by name, every tensor with a row per sample: ``x`` where there is one input; of texts ``input_ids`` and
``marks`` [rows, L], ``lengths`` and ``numbers`` [rows]; or the names of a data set's own arrays."""


def each(change: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """All tensors of a batch, changed."""
    return {name: change(value) for name, value in inputs.items()}


def select(inputs: Inputs, index: Tensor) -> Inputs:
    """Rows by position."""
    return {name: value[index] for name, value in inputs.items()}


def first_of(inputs: Inputs) -> Tensor:
    """Any of the tensors, to ask for rows or device."""
    return next(iter(inputs.values()))


def chunks(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """A batch cut into parts of at most so many rows."""
    for start in range(0, max(1, len(first_of(inputs))), size):
        yield {name: value[start : start + size] for name, value in inputs.items()}


def pack_named(inputs: Mapping[str, npt.ArrayLike]) -> Array:
    """Several inputs by name as one structured array [N], a field per input, which is dealt and stored as any other.

    Args:
        inputs: arrays with a row per sample: numbers (floating ones become float32 or stay float64) or whole numbers
            (which stay what they are: places in a table of embeddings, say).

    Raises:
        DataError: no input, a name that is no identifier, arrays of different lengths or of another kind.
    """
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    for name, value in arrays.items():
        if not str(name).isidentifier():
            raise DataError(f"the input {name!r} needs a name that a parameter of the model can have")
        if not value.ndim or value.dtype.kind not in "fiub":
            raise DataError(f"the input '{name}' is {value.dtype} of shape {value.shape}; rows of numbers are needed")
        if value.dtype.kind == "f" and value.dtype != np.float64:
            arrays[name] = value.astype(np.float32)
        elif value.dtype.kind in "iub":
            arrays[name] = value.astype(np.int64)
    if len({len(value) for value in arrays.values()}) != 1:
        sizes = ", ".join(f"{len(value)} of '{name}'" for name, value in arrays.items()) or "none"
        raise DataError(f"inputs by name need a row each for every sample; there are {sizes}")
    fields = [(str(name), value.dtype, value.shape[1:]) for name, value in arrays.items()]
    packed = np.empty(len(next(iter(arrays.values()))), dtype=np.dtype(fields, align=True))
    for name, value in arrays.items():
        packed[name] = value
    return packed


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without the device's work having to wait for it."""
    if device.type == "cuda":
        return value.pin_memory().to(device, non_blocking=True)
    return value if value.device == device else value.to(device)


@dataclass(frozen=True)
class InputFormat:
    """How stored samples look and how they become inputs.

    Attributes:
        sample_shape: of one stored sample; images are (height, width, channels).
        kind: ``numbers`` (or images), ``tokens`` (see :mod:`commonground.data.text.tokens`), or ``named`` arrays.
        preprocess: of numbers.
    """

    sample_shape: tuple[int, ...]
    kind: Literal["numbers", "tokens", "named"] = "numbers"
    preprocess: Preprocess = AS_STORED

    @property
    def image(self) -> bool:
        """Whether samples are images, which a model is given with their channels first."""
        return self.kind == "numbers" and len(self.sample_shape) == 3

    @property
    def shape(self) -> tuple[int, ...]:
        """One sample's shape as the model sees it; images as (channels, height, width)."""
        s = self.sample_shape
        return (s[2], s[0], s[1]) if self.image else tuple(s)

    def _constant(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype).to(like.device)

    def tensors(self, stored: Array) -> Inputs:
        """Stored samples as tensors that share their memory, by name."""
        if self.kind == "named":
            return {name: torch.from_numpy(np.ascontiguousarray(stored[name])) for name in stored.dtype.names or ()}
        return {self.kind: torch.from_numpy(stored)}

    def make(self, stored: Inputs, dtype: torch.dtype, noise: Tensor | None = None) -> Inputs:
        """Inputs in storage order (images channels last).

        Args:
            stored: rows of :meth:`tensors`; not changed.
            dtype: the model's number type. Whole numbers among named arrays stay what they are.
            noise: [n or 1, …], subtracted after scaling (:class:`~commonground.data.FeatureNoise`, strength included).
        """
        if self.kind == "tokens":
            header, body = stored["tokens"][:, 0], stored["tokens"][:, 1:]
            return {
                "input_ids": body[..., 0].long(), "marks": body[..., 1].long(),
                "lengths": header[:, 1].long(), "numbers": header[:, 0].long(),
            }  # fmt: skip
        if self.kind == "named":
            return {name: v.to(dtype) if v.is_floating_point() else v.long() for name, v in stored.items()}
        given = stored["numbers"]
        x = given.to(dtype)
        if self.preprocess.scale != 1.0:
            x = x * self.preprocess.scale
        if noise is not None:
            x = x - noise
        if self.preprocess.mean:
            x = x - self._constant(self.preprocess.mean, x)
        if self.preprocess.std:
            x = x / self._constant(self.preprocess.std, x)
        return {"x": x}

    def arrange(self, inputs: Inputs) -> Inputs:
        """Inputs in storage order as the model takes them: images as (channels, height, width), as a view."""
        return {"x": inputs["x"].movedim(-1, -3)} if self.image else inputs

    def black(self, dtype: torch.dtype) -> Tensor:
        """What a stored zero is as a model input: [channels] or a scalar."""
        black = torch.zeros((), dtype=dtype, device="cpu")
        if self.preprocess.mean:
            black = black - self._constant(self.preprocess.mean, black)
        return black / self._constant(self.preprocess.std, black) if self.preprocess.std else black
