"""Figures of very many clients take half of the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MANY", "fits", "narrow", "narrow_kind"]

MANY = 100_000  # beyond so many clients, figures are told to six digits, which float32 has


def narrow_kind(kind: np.dtype[Any], clients: int) -> np.dtype[Any]:
    """As what a figure of every client is kept: float32 and int32 in place of 64 bits, if there are many."""
    if clients <= MANY or kind.kind not in "if":
        return kind
    return np.dtype(np.float32 if kind.kind == "f" else np.int32)


def fits(values: npt.NDArray[Any], kind: np.dtype[Any]) -> bool:
    """Whether the largest of the values, but for infinite ones, is one of this kind."""
    if kind.itemsize >= values.dtype.itemsize:
        return True
    limit = np.finfo(kind).max if kind.kind == "f" else np.iinfo(kind).max
    finite = np.isfinite(values)  # no copy of the values, of which there may be a million
    largest = max(values.max(initial=0, where=finite), -values.min(initial=0, where=finite))
    return bool(largest <= values.dtype.type(limit))


def narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The figures [clients], as they are kept."""
    kind = narrow_kind(values.dtype, len(values))
    return values.astype(kind, copy=False) if fits(values, kind) else values
