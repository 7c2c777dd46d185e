"""Clients' arrays as they are given, as columns: training samples, their targets, test samples, their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Array
from commonground.data.formats import both_dtypes, ordered, pack_named
from commonground.errors import DataError
from commonground.quoting import quoted

__all__ = ["Rows", "client_columns"]

Rows = npt.ArrayLike | Mapping[str, npt.ArrayLike]
"""One client's samples: an array, or several by name."""


def _array(part: npt.ArrayLike) -> Array:
    if isinstance(part, Sequence) and any(map(np.ma.is_masked, part)):  # NumPy would take what is behind the mask
        return np.ma.stack([np.ma.asanyarray(row) for row in part])
    return np.asanyarray(part)


def client_columns(name: str, clients: Sequence[tuple[Rows, npt.ArrayLike, Rows, npt.ArrayLike]]) -> list[list[Array]]:
    """For each of ``x_train``, ``y_train``, ``x_test`` and ``y_test`` one array per client.

    Args:
        name: of the data set, for messages.
        clients: as of :meth:`~commonground.data.FederatedDataset.from_arrays`.

    Raises:
        DataError: they are no such tuples, there are none, or their arrays do not fit together.
    """
    if not isinstance(clients, Sequence):
        raise DataError(
            f"the clients of {name!r} are {type(clients).__name__}; a list of (x_train, y_train, x_test, y_test) "
            "is needed"
        )
    if not clients:
        raise DataError(f"the data set {name!r} has no clients; at least one is needed")
    for client, parts in enumerate(clients):
        if not isinstance(parts, tuple | list) or len(parts) != 4:
            raise DataError(f"client {client} of {name!r} is not (x_train, y_train, x_test, y_test)")
    names = tuple(clients[0][0]) if isinstance(clients[0][0], Mapping) else ()  # all inputs come in this order
    try:
        columns: list[list[Array]] = [
            [pack_named(ordered(part, names)) if isinstance(part, Mapping) else _array(part) for part in parts]
            for parts in zip(*clients, strict=True)
        ]
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"the clients of {name!r} must hold arrays: {error}") from None
    for column in columns:
        for client, array in enumerate(column):
            if np.ma.is_masked(array):
                raise DataError(f"client {client} of {name!r} has masked values; fill them, or leave their rows out")
    for client in range(len(clients)):
        for x, y, split in ((columns[0], columns[1], "training"), (columns[2], columns[3], "test")):
            if len(np.atleast_1d(x[client])) != len(np.atleast_1d(y[client])):
                raise DataError(
                    f"client {client} of {name!r} has {len(x[client])} {split} samples but "
                    f"{len(y[client])} {split} labels"
                )
        for x, split in ((columns[0], "training"), (columns[2], "test")):
            if unlike := _unlike(x[client], columns[0][0]):
                one, other = unlike
                raise DataError(
                    f"the clients' arrays of {name!r} do not fit together: {split} samples of client {client} {one}, "
                    f"training samples of client 0 {other}"
                )
    return columns


def _unlike(x: Array, first: Array) -> tuple[str, str] | None:
    """What samples are and what the first ones are, where both cannot be one array."""
    if x.dtype.names != first.dtype.names:
        return f"have the inputs {_inputs(x)}", _inputs(first)
    for input, (one, other) in both_dtypes(x, first).items():
        if one.shape != other.shape or _bytes_among_fractions(one, other):
            return f"have the input {quoted(input)} as {_look(one)}", f"as {_look(other)}"
    if _bytes_among_fractions(x.dtype, first.dtype):
        return f"are {x.dtype}", str(first.dtype)
    if x.shape[1:] != first.shape[1:]:
        return f"have the shape {x.shape[1:]}", str(first.shape[1:])
    return None


def _look(dtype: np.dtype[Any]) -> str:
    return f"{dtype.base} of shape {dtype.shape}"


def _bytes_among_fractions(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether one is bytes and the other fractions: pictures that were scaled at one client and not at another."""
    first, second = (dtype.base for dtype in (one, other))
    return (first == np.uint8 and second.kind == "f") or (second == np.uint8 and first.kind == "f")


def _inputs(x: Array) -> str:
    return ", ".join(x.dtype.names) if x.dtype.names else "one unnamed array"
