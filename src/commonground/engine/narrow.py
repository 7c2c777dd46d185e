"""Figures of very many clients take half of the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MANY", "Room", "narrow"]

MANY = 100_000  # beyond so many clients, figures are told to six digits, which float32 has


def narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The figures [clients], as they are kept."""
    kind = _kind(values.dtype, len(values))
    return values.astype(kind, copy=False) if _fits(values, kind) else values


class Room:
    """Room for a figure of every client, which comes piece by piece and is kept as :func:`narrow` would keep it.

    Args:
        clients: how many.
        like: a first piece, of the same kind and further dimensions as the others.
        exact: keep all digits.
    """

    def __init__(self, clients: int, like: npt.NDArray[Any], exact: bool) -> None:
        self._values = np.empty((clients, *like.shape[1:]), like.dtype if exact else _kind(like.dtype, clients))
        self._done = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Take in the next piece; what was kept in half of the bytes is so no longer if this one does not fit."""
        done, self._done = self._done, self._done + len(values)
        if not _fits(values, self._values.dtype):
            wide = np.empty(self._values.shape, values.dtype)
            wide[:done] = self._values[:done]
            self._values = wide
        self._values[done : self._done] = values

    def values(self) -> npt.NDArray[Any]:
        """The figure, when all pieces are in."""
        return self._values


def _kind(kind: np.dtype[Any], clients: int) -> np.dtype[Any]:
    """As what a figure of every client is kept: float32 and int32 in place of 64 bits, if there are many."""
    if clients <= MANY or kind.kind not in "if":
        return kind
    return np.dtype(np.float32 if kind.kind == "f" else np.int32)


def _fits(values: npt.NDArray[Any], kind: np.dtype[Any]) -> bool:
    """Whether the largest of the values, but for infinite ones, is one of this kind."""
    if kind.itemsize >= values.dtype.itemsize:
        return True
    limit = np.finfo(kind).max if kind.kind == "f" else np.iinfo(kind).max
    finite = np.isfinite(values)  # no copy of the values, of which there may be a million
    largest = max(values.max(initial=0, where=finite), -values.min(initial=0, where=finite))
    return bool(largest <= values.dtype.type(limit))
