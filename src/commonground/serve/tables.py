"""The rows of a request as tables, of which each row says what it says alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.tables.cells import EXACT
from commonground.data.tables.features import check_columns
from commonground.data.tables.raw import RawTable, raw_of_frame, too_large
from commonground.errors import DataError
from commonground.name_lists import plain_name
from commonground.quoting import escaped, quoted

__all__ = ["Row", "cell_kind", "named_rows", "tables_of"]

Row = Mapping[str, str | float | bool | None]


def named_rows(rows: Sequence[Any]) -> list[Row]:
    """Rows that are objects, their columns' names without blanks around them.

    Raises:
        DataError: one is none, holds half of a character, or has two columns of one name.
    """
    if not all(isinstance(row, Mapping) for row in rows):
        raise DataError("rows of a table are objects with its columns' names")
    named: list[Row] = []
    for number, row in enumerate(rows, 1):
        for text in (*row, *(cell for cell in row.values() if isinstance(cell, str))):
            if not _whole(text):
                raise DataError(f"row {number} holds half of a character, {escaped(text)}")
        named.append({plain_name(name): cell for name, cell in row.items()})
        if len(named[-1]) < len(row):
            names = [plain_name(name) for name in row]
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"row {number} has the column {quoted(twice)} twice")
    return named


def tables_of(
    rows: Sequence[Any], wanted: Sequence[str], numbers: Collection[str] = ()
) -> list[tuple[npt.NDArray[np.int64], RawTable]]:
    """Rows as tables: those together whose cells are of one kind in every column, since a column of a table has one
    kind of cells, and a row is to be answered as it is alone.

    Args:
        rows: of a request.
        wanted: the columns that are read.
        numbers: those of them in which 1 and 1.0 are the same.

    Returns:
        Each table with its rows' places among ``rows``, from 0, by which its messages name them.

    Raises:
        DataError: as :func:`named_rows`; a row lacks a wanted column (a missing value is said by null), or holds a
            whole number of more than 64 bits.
    """
    named = named_rows(rows)
    for number, row in enumerate(named, 1):
        check_columns(Path(f"row {number}"), row, wanted)
    cells: dict[str, list[Any]] = {name: [row[name] for row in named] for name in wanted}
    kinds = {name: [_kind(cell, name in numbers) for cell in column] for name, column in cells.items()}
    for name, column in kinds.items():
        if "" in column:
            place = column.index("")
            raise DataError(too_large(f"the table, row {place + 1}", name, cells[name][place]))
    mixed = [column for column in kinds.values() if len({*column} - {None}) > 1]
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for place in range(len(named)):
        groups.setdefault(tuple(column[place] for column in mixed), []).append(place)
    return [(np.array(places), _table(places, cells, kinds)) for places in groups.values()]


def _table(
    places: Sequence[int], cells: Mapping[str, Sequence[Any]], kinds: Mapping[str, Sequence[str | None]]
) -> RawTable:
    """Some of the rows as a table; cells are objects, so that a missing one makes no double of a whole number."""
    import pandas as pd

    def column(name: str) -> Any:
        wide = any(kinds[name][place] == "wide" for place in places)
        return pd.array([cells[name][place] for place in places], dtype="UInt64" if wide else object)

    raw = raw_of_frame(pd.DataFrame({name: column(name) for name in cells}))
    return replace(raw, where=lambda row: f"row {places[row] + 1}")


def cell_kind(cell: Any) -> str:
    """A cell's kind. A column of whole numbers alone is read in another way than one with fractions."""
    whole = isinstance(cell, float) and cell.is_integer()
    small = isinstance(cell, int | float) and abs(cell) < EXACT
    return f"{type(cell).__name__}{' whole' if whole else ''}{' small' if small else ''}"


def _kind(cell: Any, is_number: bool) -> str | None:
    """What a cell is: None where it is missing, empty for a whole number that no column holds."""
    if cell is None:
        return None
    if isinstance(cell, int) and not -(2**63) <= cell < 2**63:
        return "wide" if 0 <= cell < 2**64 else ""
    kind = cell_kind(cell)
    return "number" if is_number and (kind == "int small" or kind.startswith("float")) else kind


def _whole(text: str) -> bool:
    """Whether a text has no half of a surrogate pair alone, which JSON can say and no file can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
