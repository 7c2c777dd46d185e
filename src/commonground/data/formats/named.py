"""Several inputs by name, stored as one structured array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.data.arrays import Array, Preprocess
from commonground.data.formats.base import Given, InputFormat
from commonground.data.inputs import Inputs
from commonground.data.large import copy_rows, mapped, room
from commonground.errors import DataError

__all__ = ["NamedArrays", "both_dtypes", "pack_named"]

Fields = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class NamedArrays(InputFormat):
    """Arrays by name, the inputs of a module with several (:func:`pack_named`). Whole numbers stay what they are.

    Attributes:
        fields: every array's name and the shape of one sample in it.
        whole: the names of those that hold whole numbers.
    """

    kind = "named"
    called = "named inputs"
    least_axes = 1

    fields: Fields = ()
    whole: tuple[str, ...] = ()

    @classmethod
    def recognises(cls, x: Array) -> bool:
        """See :meth:`InputFormat.recognises`."""
        return bool(x.dtype.names) and x.ndim == 1

    @classmethod
    def of(cls, x: Array, preprocess: Preprocess) -> NamedArrays:
        """See :meth:`InputFormat.of`."""
        return cls(tuple(x.shape[1:]), preprocess, _fields(x), _whole(x))

    @classmethod
    def read(cls, split: Mapping[str, Any], preprocess: Preprocess) -> NamedArrays:
        """See :meth:`InputFormat.read`."""
        fields = tuple((name, tuple(shape)) for name, shape in split["fields"].items())
        return cls(tuple(split["sample_shape"]), preprocess, fields, tuple(split["whole"]))

    def about(self) -> dict[str, Any]:
        """See :meth:`InputFormat.about`."""
        fields = {name: list(shape) for name, shape in self.fields}
        return {"inputs": self.kind, "fields": fields, "whole": list(self.whole)}

    def like(self, given: Given, where: str) -> Array:
        """See :meth:`InputFormat.like`."""
        if isinstance(given, np.ndarray) and given.dtype.names:
            given = {name: given[name] for name in given.dtype.names}
        if not isinstance(given, Mapping):
            raise DataError(
                f"{where} was trained on samples that are a mapping of the arrays {_written(self.fields)}, and "
                f"{type(given).__name__} was given"
            )
        packed = pack_named(self._kinds(ordered(given, self.names)))
        if _fields(packed) != self.fields:
            raise DataError(
                f"samples of the arrays {_written(_fields(packed))} were given, but the run was trained on "
                f"{_written(self.fields)}"
            )
        return packed

    def _kinds(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Numbers as the run has them: whole ones where it was trained on these, floating ones elsewhere.

        Raises:
            DataError: a number with a fraction where whole ones are needed.
        """
        found = {}
        for name, value in given.items():
            array = np.asarray(value)
            if array.dtype.kind == "f" and name in self.whole:
                if not (array == np.trunc(array)).all():
                    raise DataError(
                        f"the input '{name}' takes whole numbers, and {array.dtype} with fractions was given"
                    )
                array = array.astype(np.int64)
            elif array.dtype.kind in "iub" and name in self.names and name not in self.whole:
                array = array.astype(np.float32)
            found[name] = array
        return found

    def check_like(self, other: InputFormat, name: str, where: str) -> None:
        """See :meth:`InputFormat.check_like`."""
        super().check_like(other, name, where)
        if isinstance(other, NamedArrays) and other.fields != self.fields:
            raise DataError(
                f"the new clients' samples are the arrays {_written(other.fields)}, but the run was trained on "
                f"{_written(self.fields)}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """See :attr:`InputFormat.names`."""
        return tuple(name for name, _ in self.fields)

    def example(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """See :meth:`InputFormat.example`."""
        kinds = [torch.int64 if name in self.whole else dtype for name in self.names]
        return tuple(
            torch.zeros(2, *shape, dtype=kind, device="cpu")
            for (_, shape), kind in zip(self.fields, kinds, strict=True)
        )

    def tensors(self, stored: Array) -> Inputs:
        """See :meth:`InputFormat.tensors`."""
        return {name: torch.from_numpy(np.ascontiguousarray(stored[name])) for name in stored.dtype.names or ()}

    def make(self, stored: Inputs, dtype: torch.dtype, noise: Tensor | None = None) -> Inputs:
        """See :meth:`InputFormat.make`."""
        return {name: v.to(dtype) if v.is_floating_point() else v.long() for name, v in stored.items()}


def ordered(inputs: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """The same inputs in the order of these names, if they have these names."""
    names = list(names)
    return {name: inputs[name] for name in names} if set(names) == set(inputs) else inputs


def both_dtypes(one: Array, other: Array) -> dict[str, tuple[np.dtype[Any], np.dtype[Any]]]:
    """Of samples of the same several inputs, the types of each, which hold the shapes as well; else nothing."""
    names = one.dtype.names if one.dtype.names == other.dtype.names else None
    return {name: (one.dtype[name], other.dtype[name]) for name in names or ()}


def pack_named(inputs: Mapping[str, npt.ArrayLike]) -> Array:
    """Several inputs by name as one structured array [N], a field per input, which is dealt and stored as any other.

    Args:
        inputs: arrays with a row per sample: numbers (floating ones become float32 or stay float64) or whole numbers
            (which stay what they are, and reach the model as int64: places in a table of embeddings, say). They are
            copied into one array; bytes stay bytes in it. Pictures among several inputs are given as floating numbers.

    Raises:
        DataError: no input, a name that is no identifier, arrays of different lengths or of another kind.
    """
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    for name, value in arrays.items():
        if not str(name).isidentifier():
            raise DataError(f"the input {name!r} needs a name that a parameter of the model can have")
        if not value.ndim or value.dtype.kind not in "fiub":
            raise DataError(f"the input '{name}' is {value.dtype} of shape {value.shape}; rows of numbers are needed")
    if len({len(value) for value in arrays.values()}) != 1:
        sizes = ", ".join(f"{len(value)} of '{name}'" for name, value in arrays.items()) or "none"
        raise DataError(f"inputs by name need a row each for every sample; there are {sizes}")
    fields = [(str(name), _stored(value.dtype), value.shape[1:]) for name, value in arrays.items()]
    count = len(next(iter(arrays.values())))
    packed = room((count,), np.dtype(fields, align=True), in_file=any(map(mapped, arrays.values())))
    for name, value in arrays.items():
        copy_rows(value, packed[name])
    return packed


def _stored(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The number type in which an input is stored."""
    if kind.kind == "f":
        return kind if kind == np.float64 else np.dtype(np.float32)
    return kind if kind == np.uint8 else np.dtype(np.int64)


def _fields(x: Array) -> Fields:
    return tuple((name, tuple(x[name].shape[1:])) for name in x.dtype.names or ())


def _whole(x: Array) -> tuple[str, ...]:
    return tuple(name for name in x.dtype.names or () if x[name].dtype.kind in "iu")


def _written(fields: Fields) -> str:
    return ", ".join(f"{name} {[*shape]}" for name, shape in fields)
