"""How a table's columns are read: as the user says, or as their cells suggest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from commonground.data.tables.affixes import bare_array
from commonground.data.tables.cells import FIRST, is_text, seems_grouped, thousands_or_not, words_of
from commonground.data.tables.dates import date_numbers, month_first
from commonground.data.tables.kinds import (
    DAY_FIRST,
    WRITTEN,
    Column,
    Reading,
    dates_of,
    kind_of,
    read_column,
    understand,
)
from commonground.data.tables.read import RawTable
from commonground.data.tables.schema import TableSchema
from commonground.errors import DataError
from commonground.name_lists import option
from commonground.quoting import quoted

__all__ = ["check_point", "check_points", "column_of", "leaves_open", "telling_ways"]


# Points stand between day and month alone.
_DAY_OR_MONTH = re.compile(r"\s*(0?[1-9]|1[0-2])([/-])(0?[1-9]|1[0-2])\2")


def column_of(raw: RawTable, name: str, said: Mapping[str, Reading] | None = None) -> Column:
    """A column's cells.

    Args:
        raw: the table.
        name: of the column.
        said: how columns are read, by name, where somebody says so (``--kinds``, or a run).

    Raises:
        DataError: its numbers may be read in two ways, or a cell does not fit (line and column named).
    """
    if said and name in said:
        column = read_column(raw.path, name, raw.columns[name], said[name], raw.where)
    else:
        column = understand(raw.path, name, raw.columns[name], raw.typed, raw.where)
    return _as_other_dates(raw, column) if column.reading.note == DAY_FIRST else column


def _as_other_dates(raw: RawTable, column: Column) -> Column:
    """Dates whose cells leave open whether the month comes first, read as the file's other dates prove it."""
    name, array, order = column.name, raw.columns[column.name], column.reading.order
    other = month_first(order)
    days, months = (_proven(raw, which) for which in (order, other))
    if not months:
        return column
    if days:
        note = f"{DAY_FIRST}, as in {quoted(days)}, and not as in {quoted(months)}"
        ask = option("--kinds", f"{name}=date:{other}")
        return replace(column, reading=replace(column.reading, note=f"{note}; else say {ask}"))
    ask = option("--kinds", f"{name}=date:{order}")
    read = Reading("date", order=other, note=f"month before day, as in {quoted(months)}; else say {ask}")
    return read_column(raw.path, name, array, read, raw.where)


def _proven(raw: RawTable, order: str) -> str | None:
    """A column of dates with this mark between day and month of which but this of the two can come first."""
    for name, array in raw.columns.items():
        if is_text(array.type) and words_of(array.slice(0, FIRST)).looks_like_dates:
            cells = words_of(array)
            found = dates_of(cells)
            if found is None or found.note or found.order[:3] != order[:3]:
                continue
            if not np.isnan(date_numbers(cells.words, found.order)).any():
                return name
    return None


def leaves_open(array: Any, reading: Reading) -> bool:
    """Whether a column's cells may be written in another way than they are taken to be: all its points may mark
    thousands (1.234), or days and months may change places (03/04/2024, 03-04-2024).
    """
    if not is_text(array.type):
        return False
    if reading.kind == "number":
        return reading.decimal == "point" and thousands_or_not(bare_array(array, reading.affix)) is not None
    words = words_of(array).words if reading.kind in ("date", "constant") else []
    return bool(words) and all(map(_DAY_OR_MONTH.match, words))


def check_points(raw: RawTable, said: Mapping[str, Reading], *readings: Mapping[str, Reading]) -> None:
    """Refuse numbers whose points may mark thousands: in a file of which another column has decimal commas, and where
    all numbers of the column look so (:func:`~commonground.data.tables.cells.seems_grouped`).

    Args:
        raw: the table.
        said: the readings of columns of which somebody said so.
        readings: how columns are read, whatever they are for.

    Raises:
        DataError: names the first, and what to say.
    """
    numbers = {name: r for part in readings for name, r in part.items() if r.kind == "number"}
    commas = any(r.decimal == "comma" for r in numbers.values())
    for name, reading in numbers.items():
        if reading.decimal == "point" and name not in said and is_text(raw.columns[name].type):
            check_point(raw.path, name, bare_array(raw.columns[name], reading.affix), commas=commas)


def check_point(path: Path, name: str, array: Any, *, commas: bool = False) -> None:
    """As :func:`check_points`, of one column of text.

    Args:
        path: of the file, for messages.
        name: the column's.
        array: its pyarrow array.
        commas: whether another column has decimal commas.

    Raises:
        DataError: names it, and what to say.
    """
    word = thousands_or_not(array) if commas else seems_grouped(array)
    if word is None:
        return
    either = " or ".join(option("--kinds", f"{name}={kind}") for kind in ("number", "comma-number"))
    why = "in a file with decimal commas" if commas else "as beside it no number without a point has more than 3 digits"
    raise DataError(
        f"{path}, column {quoted(name)}: the point in {quoted(word)} may be a decimal one or mark thousands, {why}; "
        f"say {either}"
    )


@contextmanager
def telling_ways(raw: RawTable, schema: TableSchema | None) -> Iterator[None]:
    """While open, an error says how the file writes numbers and dates, where that is not as in training.

    Args:
        raw: the file's table.
        schema: of the run that reads it, if one does.
    """
    try:
        yield
    except DataError as error:
        ways = [] if schema is None else _ways(raw, schema)
        if not ways:
            raise
        hint = f"if it writes them otherwise than in training, say {option('--kinds', *ways)}"
        raise DataError(f"{error}; {hint}") from None


def _ways(raw: RawTable, schema: TableSchema) -> list[str]:
    """How columns seem to be written, as ``--kinds`` takes it, where that is not as in training."""
    known = {column.name: column.reading for column in schema.of_kind(*WRITTEN)}
    decimals = zip(schema.targets, schema.target_decimals, strict=False)
    ways = []
    for name, reading in (known | {name: Reading("number", decimal) for name, decimal in decimals}).items():
        with suppress(DataError, KeyError):  # a column that is not there, or can be read in no way
            seen = column_of(raw, name).reading
            if seen.kind == reading.kind and (seen.decimal, seen.order) != (reading.decimal, reading.order):
                ways.append(f"{name}={kind_of(seen)}")
    return ways
