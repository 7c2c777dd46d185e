"""sha256 of tensors by name, one set at a time or a row of many at a time."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from commonground.algorithms import Tensors
from commonground.engine.state.files import raw_bytes

__all__ = ["digest", "digest_rows"]


def digest(tensors: Tensors) -> str:
    """sha256 over tensors on any device, in the order of their names: name, type, shape and bytes of each."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu()
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(raw_bytes(value))
    return sha.hexdigest()


def digest_rows(stacked: Tensors) -> npt.NDArray[np.uint8]:
    """:func:`digest` of every row of tensors stacked on a leading axis, as bytes [rows, 32]."""
    rows = len(next(iter(stacked.values())))
    parts = []
    for name in sorted(stacked):
        value = stacked[name]
        size = value[0].numel() * value.element_size() if rows else 0
        parts.append((f"{name} {value.dtype} {tuple(value.shape[1:])}\n".encode(), raw_bytes(value), size))
    digests = np.empty((rows, 32), np.uint8)
    for row in range(rows):
        sha = hashlib.sha256()
        for title, content, size in parts:
            sha.update(title)
            sha.update(content[row * size : (row + 1) * size])
        digests[row] = np.frombuffer(sha.digest(), np.uint8)
    return digests
