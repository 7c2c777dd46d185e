"""Arrays that need not fit into memory: those that are mapped from a file, and room for more of them."""

from __future__ import annotations

import math
import tempfile
from typing import Any

import numpy as np

from commonground.data.arrays import Array

__all__ = ["copy_rows", "mapped", "room"]

IN_MEMORY = 1 << 31  # bytes; more go to a temporary file
AT_ONCE = 1 << 24  # bytes copied at once into such a file


def mapped(array: Any) -> bool:
    """Whether an array, or what it is a view of, is mapped from a file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def room(shape: tuple[int, ...], dtype: np.dtype[Any], *, in_file: bool | None = None) -> Array:
    """An array to be filled, in an unnamed temporary file if it is large or if that is asked for."""
    size = math.prod(shape) * dtype.itemsize
    if size > IN_MEMORY if in_file is None else in_file and size:
        with tempfile.TemporaryFile(prefix="commonground-samples-") as file:  # has no name, so nothing is left behind
            return np.memmap(file, dtype=dtype, mode="w+", shape=shape)
    return np.empty(shape, dtype)


def copy_rows(rows: Array, to: Array) -> None:
    """Copy rows some at a time, so that those that are mapped from a file are never in memory together."""
    some = max(1, AT_ONCE // max(1, rows.nbytes // max(1, len(rows))))
    for start in range(0, len(rows), some):
        to[start : start + some] = rows[start : start + some]
