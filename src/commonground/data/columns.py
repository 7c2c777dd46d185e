"""Clients' arrays as they are given, as columns: training samples, their targets, test samples, their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Array
from commonground.data.formats import ordered, pack_named
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
            if x[client].dtype.names != columns[0][0].dtype.names:
                raise DataError(
                    f"the clients' arrays of {name!r} do not fit together: {split} samples of client {client} have "
                    f"the inputs {_inputs(x[client])}, training samples of client 0 {_inputs(columns[0][0])}"
                )
            for input, dtype in _dtypes(x[client]).items():
                first = _dtypes(columns[0][0])[input]
                if dtype.shape != first.shape or _bytes_among_fractions(dtype.base, first.base):
                    one, other = _look(dtype), _look(first)
                    raise DataError(
                        f"the clients' arrays of {name!r} do not fit together: {split} samples of client {client} have "
                        f"the input {quoted(input)} as {one}, training samples of client 0 as {other}"
                    )
            if _bytes_among_fractions(x[client].dtype, columns[0][0].dtype):
                raise DataError(
                    f"the clients' arrays of {name!r} do not fit together: {split} samples of client {client} are "
                    f"{x[client].dtype}, training samples of client 0 {columns[0][0].dtype}"
                )
            if x[client].shape[1:] != columns[0][0].shape[1:]:
                raise DataError(
                    f"the clients' arrays of {name!r} do not fit together: {split} samples of client {client} have "
                    f"the shape {x[client].shape[1:]}, training samples of client 0 {columns[0][0].shape[1:]}"
                )
    return columns


def _dtypes(x: Array) -> dict[str, np.dtype[Any]]:
    """Of samples of several inputs, the shape and type of each."""
    return {} if x.dtype.names is None else {name: x.dtype[name] for name in x.dtype.names}


def _look(dtype: np.dtype[Any]) -> str:
    return f"{dtype.base} of shape {dtype.shape}"


def _bytes_among_fractions(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether one is bytes and the other fractions: pictures that were scaled at one client and not at another."""
    kinds = {(dtype.kind, dtype.itemsize if dtype.kind == "u" else 0) for dtype in (one, other)}
    return kinds == {("u", 1), ("f", 0)}


def _inputs(x: Array) -> str:
    return ", ".join(x.dtype.names) if x.dtype.names else "one unnamed array"
