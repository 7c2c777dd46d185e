"""What samples and splits are made of, and what changes samples on their way into a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from commonground.errors import ConfigError, DataError
from commonground.single_precision import rounding_shows

__all__ = [
    "AS_STORED",
    "Array",
    "FeatureNoise",
    "Indices",
    "Marks",
    "Preprocess",
    "Related",
    "Split",
    "held_count",
    "offsets_of",
]

Array = npt.NDArray[Any]
"""Samples: uint8, float32 or float64; int32 for tokens."""
Indices = npt.NDArray[np.int64]
"""Row numbers, labels, offsets or counts."""
Marks = npt.NDArray[np.bool_]
"""Which of some rows are meant."""


def offsets_of(sizes: Iterable[int]) -> Indices:
    """Where each of several parts begins that follow one another, and where the last one ends: [parts + 1].

    >>> offsets_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.cumsum([0, *sizes], dtype=np.int64)


@dataclass(frozen=True)
class Preprocess:
    """How a stored sample becomes a model's input: ``(x.float() * scale - mean) / std``.

    Attributes:
        scale: factor on the stored value; ``1/255`` takes a byte to 0…1.
        mean: per channel (last axis of the stored sample), or one for all; empty means 0.
        std: as ``mean``, all positive; empty means 1.
        double: compute so in double precision, whatever the numbers are.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    double: bool = field(default=False, repr=False)  # fingerprints of data are made of what is shown

    @cached_property
    def in_double(self) -> bool:
        """Whether double precision has to subtract the mean: where it is said, or where stored numbers are so large
        beside what they differ by.
        """
        if self.double:
            return True
        count = max(len(self.mean), len(self.std))
        mean, std = (values * count if len(values) == 1 else values for values in (self.mean, self.std or (1.0,)))
        return any(map(rounding_shows, mean, std))


AS_STORED = Preprocess()
"""Stored values are the model's input."""


@dataclass(frozen=True, eq=False)
class FeatureNoise:
    """What every client's samples x are changed by on their way into a model: x′ = x − ρ·x̃ᵢ.

    Attributes:
        strength: ρ, positive.
        images: x̃ [clients, …], stored as the samples are: one for all samples of a client, training and test alike.

    Raises:
        ConfigError: the strength is not a positive number.
    """

    strength: float
    images: Array

    def __post_init__(self) -> None:
        self.check_strength(self.strength)
        if self.strength == 0:
            raise ConfigError("feature noise of strength 0 is none; leave it out")
        # The only writes to a frozen instance: its normal forms.
        object.__setattr__(self, "strength", float(self.strength))
        object.__setattr__(self, "images", np.ascontiguousarray(self.images))

    def of(self, clients: Sequence[int]) -> FeatureNoise:
        """The noise of some of the clients, in this order."""
        return FeatureNoise(self.strength, self.images[list(clients)])

    @staticmethod
    def check_strength(value: float) -> None:
        """Refuse what is no number of at least 0.

        Raises:
            ConfigError: says what it is.
        """
        number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value >= 0):
            raise ConfigError(f"feature_noise is {value!r}; it must be a number of at least 0")


def held_count(rows: int, share: float) -> int:
    """How many of a client's rows are held out, to test or to validate: at least one, and at least one stays."""
    return min(rows - 1, max(1, round(share * rows)))


@dataclass(frozen=True)
class Related:
    """What rows of a table have to do with each other, where its owner said so. Test rows, and rows for validation, are
    held out by it.

    Attributes:
        by: ``time``, by which the last ones are held out; or ``group``, of which rows are held out together.
        values: of each row, its moment, or its group's place among the groups' names.
    """

    by: Literal["time", "group"]
    values: npt.NDArray[Any]

    def held(self, rows: Indices, wanted: int, rng: np.random.Generator) -> Marks:
        """Which of a client's rows are held out.

        Args:
            rows: the client's.
            wanted: how many, fewer than all; of equal times the last in the table's order. Of groups, in random order,
                as many as are needed for that, and none if there is one alone.
            rng: draws groups.
        """
        values, chosen = self.values[rows], np.zeros(len(rows), dtype=np.bool_)
        if self.by == "time":
            chosen[np.argsort(values, kind="stable")[len(rows) - wanted :]] = True
            return chosen
        own, sizes = np.unique(values, return_counts=True)
        order = rng.permutation(len(own))[:-1]
        before = np.cumsum(sizes[order]) - sizes[order]
        return np.isin(values, own[order[before < wanted]])


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

    @classmethod
    def of_rows(
        cls, train: Sequence[ArrayLike], test: Sequence[ArrayLike], client_names: Sequence[str] | None = None
    ) -> Split:
        """From row numbers, for a partition of one's own.

        Args:
            train, test: each client's row numbers into the training and the test arrays.
            client_names: one name per client.

        Raises:
            DataError: these are not as many clients, or what is given are no whole numbers.

        >>> Split.of_rows([[0, 2], [1]], [[0], [1]]).train_offsets
        array([0, 2, 3])
        """
        if len(train) != len(test):
            raise DataError(f"there are training rows of {len(train)} clients, and test rows of {len(test)}")
        (train_index, train_offsets), (test_index, test_offsets) = _rows_of(train), _rows_of(test)
        return cls(
            train_index, train_offsets, test_index, test_offsets, None if client_names is None else tuple(client_names)
        )


def _rows_of(clients: Sequence[ArrayLike]) -> tuple[Indices, Indices]:
    rows = [np.asarray(own) for own in clients]
    for number, own in enumerate(rows):
        if own.ndim != 1 or (own.size and not np.issubdtype(own.dtype, np.integer)):
            raise DataError(
                f"rows of client {number} are {own.dtype} of shape {own.shape}; one row of whole numbers is needed"
            )
    joined = np.concatenate([np.empty(0, np.int64), *(own.astype(np.int64) for own in rows)])
    return joined, np.cumsum([0, *map(len, rows)])
