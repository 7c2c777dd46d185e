"""Samples of many clients as one array: joined from theirs, or read one by one, in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Array
from commonground.data.formats import pack_named
from commonground.data.large import copy_rows, mapped, room
from commonground.errors import DataError

__all__ = ["AnySamples", "IndexedSamples", "joined", "listed", "read_samples"]


class IndexedSamples(Protocol):
    """Samples by number, as PyTorch's data sets have them."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int, /) -> tuple[Any, Any]:
        """A sample and its target."""


AnySamples = IndexedSamples | Iterable[Any]
"""Samples by number, or as a stream."""


def joined(parts: Sequence[Array], *, writable: bool = False) -> Array:
    """The rows of all parts, one after the other.

    Memory-mapped parts are not read into memory: those that lie one after the other in one file become a view of it,
    others are copied into an unnamed temporary file.

    Args:
        parts: arrays of one row shape.
        writable: whether the result is going to be changed, which the parts must not be.

    Raises:
        ValueError: as ``np.concatenate``.
    """
    if not any(mapped(part) for part in parts) or len({part.shape[1:] for part in parts}) > 1:
        return np.concatenate(parts)
    view = None if writable else _view(parts)
    if view is not None:
        return view
    whole = room((sum(map(len, parts)), *parts[0].shape[1:]), np.result_type(*parts), in_file=True)
    start = 0
    for part in parts:
        copy_rows(part, whole[start : start + len(part)])
        start += len(part)
    return whole


def _root(array: Any) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    root: Array = array
    return root


def _view(parts: Sequence[Array]) -> Array | None:
    """The parts as one view of the array that they are parts of, if they follow each other there."""
    first, root = parts[0], _root(parts[0])
    place = first.ctypes.data
    for part in parts:
        alike = part.dtype == first.dtype and part.flags.c_contiguous and _root(part) is root
        if not alike or part.ctypes.data != place:
            return None
        place += part.nbytes
    if not root.flags.c_contiguous:
        return None
    start = first.ctypes.data - root.ctypes.data
    whole = root.reshape(-1).view(np.uint8)[start : start + place - first.ctypes.data]
    return whole.view(first.dtype).reshape(-1, *first.shape[1:])


def listed(samples: Any, what: str) -> Sequence[Any]:
    """Samples by number; a stream of them (PyTorch's ``IterableDataset``) is read to its end.

    Args:
        samples: a data set.
        what: it is, for messages.

    Raises:
        DataError: it is neither, or the stream fails.
    """
    if hasattr(samples, "__len__") and hasattr(samples, "__getitem__"):
        found: Sequence[Any] = samples
        return found
    if not hasattr(samples, "__iter__"):
        raise DataError(
            f"{what} are a {type(samples).__name__}, which lacks __len__ or __getitem__ and cannot be gone through: "
            "samples are read by their number, or as a stream"
        )
    try:
        return list(samples)
    except Exception as error:  # whatever a user's data set raises
        raise DataError(f"{what} cannot be read as a stream: {type(error).__name__}: {error}") from error


def read_samples(sets: Sequence[AnySamples], what: Callable[[int], str]) -> tuple[list[Array], list[Array]]:
    """Every sample of every set, each read once.

    Args:
        sets: of the clients: by number, or streams.
        what: from a client's position to what its samples are, for messages.

    Returns:
        Each client's samples and targets. The samples are parts of one array, which lies in a temporary file if it is
        large.

    Raises:
        DataError: a set is empty or no set of samples, or a sample cannot be read or has another shape.
    """
    sizes = []
    read = [listed(samples, what(client)) for client, samples in enumerate(sets)]
    for client, samples in enumerate(read):
        sizes.append(len(samples))
        if not sizes[-1]:
            raise DataError(f"there are no {what(client)}; every client needs at least 1")
    like: Array | None = None
    whole: Array = np.empty(0)
    targets: list[Array] = []
    place = 0
    for client, (samples, size) in enumerate(zip(read, sizes, strict=True)):
        own: list[npt.NDArray[Any]] = []
        for number in range(size):
            try:
                x, y = samples[number]
                named = isinstance(x, Mapping)
                row = pack_named({n: np.asarray(v)[np.newaxis] for n, v in x.items()})[0] if named else np.asarray(x)
                own.append(np.asarray(y))
            except Exception as error:  # whatever a user's data set raises
                raise DataError(
                    f"sample {number} of the {what(client)} cannot be read as (x, y): {type(error).__name__}: {error}"
                ) from error
            if like is None:
                like = row
                whole = room((sum(sizes), *row.shape), row.dtype)
            if row.shape != like.shape or row.dtype != like.dtype or own[-1].shape != own[0].shape:
                raise DataError(
                    f"sample {number} of the {what(client)} is {row.dtype} {row.shape} with a target of shape "
                    f"{own[-1].shape}; the first ones are {like.dtype} {like.shape} with {own[0].shape}"
                )
            whole[place] = row
            place += 1
        targets.append(np.stack(own))
    ends = np.cumsum([0, *sizes]).tolist()
    return [whole[start:end] for start, end in pairwise(ends)], targets
