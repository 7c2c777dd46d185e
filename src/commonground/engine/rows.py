"""Rows that are made when they are asked for, so that a million of them fit: what tables of clients have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Rows", "number_in"]


def number_in(cell: object) -> float:
    """What a cell holds as a number; NaN where it is none."""
    try:
        return float(str(cell))
    except ValueError:
        return math.nan


class Rows(Sequence[dict[str, Any]]):
    """A sequence of dicts with the same names, none of which is kept."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The columns' names."""

    @abstractmethod
    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """[rows] a column's numbers; NaN where a cell holds none, and where there is no such column."""

    @abstractmethod
    def _row(self, place: int) -> dict[str, Any]:
        """The row at a place from 0."""

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, place: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(place, slice):
            return [self._row(each) for each in range(*place.indices(len(self)))]
        return self._row(range(len(self))[place])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._row, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return NotImplemented if not isinstance(other, Sequence) else False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as that of a list

    def __repr__(self) -> str:
        count = len(self)
        return repr(self[:3])[:-1] + (f", … {count:,} in all]" if count > 3 else "]")
