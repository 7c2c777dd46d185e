"""What samples and splits are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["AS_STORED", "Array", "Indices", "Preprocess", "Split", "Task"]

Array = npt.NDArray[Any]
"""Samples: uint8, float32 or float64; int32 for tokens."""
Indices = npt.NDArray[np.int64]
"""Row numbers, labels, offsets or counts."""
Task = Literal["classify", "language"]
"""What is learnt: a sample's class, or (tokens only) to continue a prompt with its answer."""


@dataclass(frozen=True)
class Preprocess:
    """How a stored sample becomes a model's input: ``(x.float() * scale - mean) / std``.

    Attributes:
        scale: factor on the stored value; ``1/255`` takes a byte to 0…1.
        mean: per channel (last axis of the stored sample), or one for all; empty means 0.
        std: as ``mean``, all positive; empty means 1.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


AS_STORED = Preprocess()
"""Stored values are the model's input."""


@dataclass(frozen=True)
class Split:
    """Which client owns which rows; client ``i`` owns ``index[offsets[i]:offsets[i + 1]]`` in each split.

    Attributes:
        train_index, test_index: int64, row numbers into the training and test arrays.
        train_offsets, test_offsets: int64 [clients + 1], from 0 up to the length of the index.
        client_names: one name per client, or None for "0", "1", ….
    """

    train_index: Indices
    train_offsets: Indices
    test_index: Indices
    test_offsets: Indices
    client_names: tuple[str, ...] | None = None
