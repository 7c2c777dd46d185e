"""Figures of very many clients take half of the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MANY", "narrow", "narrow_kind"]

MANY = 100_000  # beyond so many clients, figures are told to six digits (float32 has seven)


def narrow_kind(kind: np.dtype[Any], clients: int) -> np.dtype[Any]:
    """As what a figure of every client is kept: float32 and int32 in place of 64 bits, if there are many."""
    if clients <= MANY or kind.kind not in "if":
        return kind
    return np.dtype(np.float32 if kind.kind == "f" else np.int32)


def narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The figures [clients], as they are kept."""
    return values.astype(narrow_kind(values.dtype, len(values)), copy=False)
