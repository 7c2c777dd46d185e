"""The rows of ``clients.csv``: columns in memory, a dict when a row is asked for, so that a million of them fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

__all__ = ["ClientRows", "Column", "Numbers"]

Numbers = npt.NDArray[Any]
Column = Numbers | Callable[[int], Any] | None

# Beyond this many clients, figures are told to six digits (float32 has seven): half of the bytes.
ALL_DIGITS_UP_TO = 100_000
DIGITS = 6


class ClientRows(Sequence[dict[str, Any]]):
    """A row for every client, as a sequence of dicts, each made when it is asked for.

    Args:
        clients: how many.
        columns: by name: whole numbers or figures [clients] (a cell is empty where one is NaN), a function of the
            client's number, or None for empty cells.
    """

    def __init__(self, clients: int, columns: dict[str, Column]) -> None:
        self._clients, self._columns = clients, columns
        self._digits = None if clients <= ALL_DIGITS_UP_TO else DIGITS

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return list(self._columns)

    def with_column(self, name: str, values: Sequence[float] | Numbers) -> ClientRows:
        """The same rows with one more column, the last."""
        return ClientRows(self._clients, {**self._columns, name: np.asarray(values)})

    def __len__(self) -> int:
        return self._clients

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, place: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(place, slice):
            return [self._row(client) for client in range(*place.indices(self._clients))]
        return self._row(range(self._clients)[place])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._row, range(self._clients))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return NotImplemented if not isinstance(other, Sequence) else False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as that of a list

    def __repr__(self) -> str:
        return repr(list(self[:3]))[:-1] + (f", … {self._clients:,} in all]" if self._clients > 3 else "]")

    def _row(self, client: int) -> dict[str, Any]:
        return {name: _cell(column, client, self._digits) for name, column in self._columns.items()}


def _cell(column: Column, client: int, digits: int | None) -> Any:
    if column is None:
        return ""
    if callable(column):
        return column(client)
    value = column[client].item()
    if isinstance(value, int):
        return value
    if math.isnan(value):
        return ""
    return value if digits is None else float(f"{value:.{digits}g}")
