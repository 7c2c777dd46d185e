"""The rows of a CSV file: its bytes in memory, of which a row is made when it is asked for."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.engine.rows import Rows, number_in

__all__ = ["CsvRows"]

NEWLINE, RETURN, QUOTE = b'\n\r"'


class CsvRows(Rows):
    """Rows as dicts of texts, or of what is made of them.

    Args:
        content: of the file.
        made: what becomes of a row's texts; by default they stay.

    Raises:
        ValueError: it is no UTF-8, or a row has more or fewer cells than the first line; also whatever ``made`` raises.
        csv.Error: it is no CSV.
    """

    def __init__(self, content: bytes, made: Callable[[dict[str, str]], dict[str, Any]] | None = None) -> None:
        self._content, self._made = content, made
        starts, ends = _records(content)
        self._names = self._cells(starts[0], ends[0]) if len(starts) else []
        self._starts, self._ends = starts[1:], ends[1:]
        for place, cells in enumerate(self._texts(), 1):  # what cannot be read is told now
            if len(cells) != len(self._names):
                raise ValueError(f"row {place} has {len(cells)} cells, not {len(self._names)}")
            if made is not None:
                self._dict(cells)

    @property
    def names(self) -> list[str]:
        """Of the file's first line."""
        return self._names

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """See :meth:`Rows.numbers`."""
        if name not in self._names:
            return np.full(len(self), np.nan)
        place = self._names.index(name)
        return np.fromiter((number_in(cells[place]) for cells in self._texts()), np.float64, len(self))

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._dict, self._texts())

    def _row(self, place: int) -> dict[str, Any]:
        return self._dict(self._cells(self._starts[place], self._ends[place]))

    def _texts(self) -> Iterator[list[str]]:
        """The cells of all rows, read in one go: much faster than one by one."""
        lines = io.TextIOWrapper(io.BytesIO(self._content), "utf-8", newline="")
        return islice(filter(None, csv.reader(lines)), 1, None)

    def _cells(self, start: int, end: int) -> list[str]:
        return next(csv.reader(io.StringIO(self._content[start:end].decode("utf-8"), newline="")))

    def _dict(self, cells: list[str]) -> dict[str, Any]:
        row = dict(zip(self._names, cells, strict=True))
        return row if self._made is None else self._made(row)


def _records(content: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where each record begins and ends: at a line's end that no quotes are open at. Empty lines are none."""
    letters = np.frombuffer(content, np.uint8)
    quotes, ends = (np.flatnonzero(letters == letter) for letter in (QUOTE, NEWLINE))
    ends = ends[np.searchsorted(quotes, ends) % 2 == 0] + 1
    if len(letters) and (not len(ends) or ends[-1] < len(letters)):
        ends = np.append(ends, len(letters))
    starts = np.append(0, ends)[: len(ends)]
    full = ~np.isin(letters[starts], (NEWLINE, RETURN))
    return starts[full], ends[full]
