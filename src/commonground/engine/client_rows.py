"""The rows of ``clients.csv`` while a run is in memory: columns, of which a row is made when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.engine.narrow import MANY
from commonground.engine.rows import Rows, number_in

__all__ = ["ClientRows", "Column", "Numbers"]

Numbers = npt.NDArray[Any]
Column = Numbers | Callable[[int], Any] | None

DIGITS = 6  # of figures of very many clients


class ClientRows(Rows):
    """A row for every client.

    Args:
        clients: how many.
        columns: by name: whole numbers or figures [clients] (a cell is empty where one is NaN), a function of the
            client's number, or None for empty cells.
    """

    def __init__(self, clients: int, columns: dict[str, Column]) -> None:
        self._clients, self._columns = clients, columns
        self._digits = None if clients <= MANY else DIGITS

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return list(self._columns)

    def with_column(self, name: str, values: Sequence[float] | Numbers) -> ClientRows:
        """The same rows with one more column, the last."""
        return ClientRows(self._clients, {**self._columns, name: np.asarray(values)})

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """See :meth:`Rows.numbers`; all digits that are kept."""
        column = self._columns.get(name)
        if column is None:
            return np.full(self._clients, np.nan)
        if callable(column):
            return np.fromiter(map(number_in, map(column, range(self._clients))), np.float64, self._clients)
        return column.astype(np.float64)

    def __len__(self) -> int:
        return self._clients

    def _row(self, place: int) -> dict[str, Any]:
        return {name: _cell(column, place, self._digits) for name, column in self._columns.items()}


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
