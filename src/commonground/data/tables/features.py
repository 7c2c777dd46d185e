"""Which columns of a table are features, and how each is read."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.counted import counted
from commonground.data.tables.affixes import bare_array
from commonground.data.tables.cells import EXACT, is_text, rounded_away, seems_grouped, words_of
from commonground.data.tables.encode import encode, learn_columns, unseen
from commonground.data.tables.kinds import Column, Reading, read_column
from commonground.data.tables.notation import column_of
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import RawTable
from commonground.data.tables.schema import ColumnSchema, TableSchema
from commonground.data.tables.spelling import spelt_twice
from commonground.errors import DataError
from commonground.name_lists import listed, option, plain_name
from commonground.quoting import quoted

__all__ = [
    "check_columns",
    "find_features",
    "ignored",
    "kind_of_dropped",
    "known_features",
    "learn_features",
    "listed_columns",
    "readings_of",
    "readings_said",
    "said_of_counting",
    "said_of_doubles",
    "said_of_rounding",
    "said_of_unseen",
    "strange_cells",
    "why_not",
]

Rows = npt.NDArray[np.float32]
Marks = npt.NDArray[np.bool_]

_MANY = 20  # rows from which a column that counts them is told

WHY_NOT = {
    "id": "names a row",
    "text": "is a text, for a model hf:NAME",
    "constant": "is always the same",
    "units": "holds numbers with units",
}


def why_not(reading: Reading) -> str:
    """Why a column that is read so is no feature."""
    return WHY_NOT[reading.kind] + (f" ({reading.note})" if reading.kind == "units" else "")


def kind_of_dropped(why: str) -> str | None:
    """What a column that was left out holds, if it was for what it holds."""
    return next((kind for kind, words in WHY_NOT.items() if why == words or why.startswith(f"{words} (")), None)


def check_columns(
    path: Path, names: Collection[str], wanted: Iterable[str], unread: Mapping[str, str] | None = None
) -> None:
    """Refuse a table that lacks a column.

    Args:
        path: of the table.
        names: of its columns.
        wanted: those that have to be there.
        unread: columns of the file that hold what no table is read of, with their types.

    Raises:
        DataError: names the first, what it may have been called, and what there is.
    """
    for column in wanted:
        if column in (unread or {}):
            kind = (unread or {})[column]
            raise DataError(f"{path}: the column {quoted(column)} holds {kind}, and no numbers, words, dates or truths")
        if column not in names:
            whole = [name for name in names if "," in name and column in map(str.strip, name.split(","))]
            alike = [name for name in names if name.casefold() == column.casefold()]
            near = whole[:1] or alike[:1] or difflib.get_close_matches(column, names, n=1)
            hint = f" (did you mean {quoted(listed(near))}?)" if near else ""
            there = f"its columns are: {listed_columns(names)}" if names else "it has none"
            raise DataError(f"{path} has no column {quoted(column)}{hint}; {there}")


def listed_columns(names: Collection[str], most: int = 30) -> str:
    """Columns by name, as they are typed; of many the first."""
    shown = [listed([name]) if name.isprintable() else quoted(name) for name in list(names)[:most]]
    return ", ".join(shown) + (f", … ({len(names)} in all)" if len(names) > most else "")


def find_features(
    raw: RawTable, taken: Collection[str | None], options: TableOptions
) -> tuple[dict[str, Column], dict[str, str]]:
    """Features as their cells and the options say.

    Args:
        raw: the table.
        taken: columns that are something else.
        options: what the user says.

    Returns:
        The features by name, and the columns that are none, with why.

    Raises:
        DataError: there are no features, or a cell does not fit its column.
    """
    readings, features, dropped, left_out = options.readings, {}, {}, set(options.drop)
    for name in raw.names:
        if name in taken:
            continue
        if name in left_out:
            dropped[name] = "dropped"
            continue
        column = column_of(raw, name, readings)
        if column.reading.kind in WHY_NOT:
            dropped[name] = why_not(column.reading)
        else:
            features[name] = column
    if not features:
        left = f" ({', '.join(f'{quoted(name)} {why}' for name, why in dropped.items())})" if dropped else ""
        raise DataError(f"{raw.path} has no feature columns beside the label{left}; at least one is needed")
    return features, dropped


def learn_features(
    raw: RawTable,
    about: TableSchema,
    features: Mapping[str, Column],
    dropped: Mapping[str, str],
    training: npt.NDArray[np.bool_],
) -> tuple[TableSchema, dict[str, Column]]:
    """The schema with the features' encoders, learnt from training rows, and the features by name."""
    empty = {name: None for name, column in features.items() if _empty(column, training)}
    dropped = {**dropped, **dict.fromkeys(empty, "has no value in the training rows")}
    features = {name: column for name, column in features.items() if name not in empty}
    if not features:
        raise DataError(f"{raw.path} has no feature columns with values in the training rows")
    columns = learn_columns(list(features.values()), training)
    stored = raw.seconds
    columns = tuple(replace(c, seconds=c.name in stored, clocks=c.name in stored or c.clocks) for c in columns)
    notes = readings_said(features)
    ids = tuple(name for name, why in dropped.items() if why == WHY_NOT["id"])
    filled = tuple(n for n, c in features.items() if c.numbers is not None and bool(np.isnan(c.numbers).any()))
    about = replace(about, features=columns, dropped=dropped, ids=ids, filled=filled)
    return replace(about, notes=(*about.notes, *notes)), features


def readings_of(features: Mapping[str, Column]) -> dict[str, Reading]:
    """How columns are read, by name."""
    return {name: column.reading for name, column in features.items()}


def readings_said(features: Mapping[str, Column]) -> tuple[str, ...]:
    """Sentences about how features were read where that could be otherwise."""
    notes = [f"{name}: {column.reading.note}" for name, column in features.items() if column.reading.note]
    for name, column in features.items():
        alike = None if column.cells is None else spelt_twice(column.cells.words)
        if column.reading.kind == "category" and alike is not None:
            one, other = map(quoted, alike)
            notes.append(f"{name}: {one} and {other} are two categories; if they are one, spell them alike")
    return tuple(notes)


def said_of_rounding(name: str, column: Column) -> list[str]:
    """A sentence about a feature whose numbers single precision rounds away."""
    lost = rounded_away(column.numbers) if column.reading.kind == "number" and column.numbers is not None else None
    if lost is None:
        return []
    return [
        f"{name}: its numbers differ by about {lost[1]:.3g} and are rounded to steps of {lost[0]:.3g} in single "
        "precision; subtract what they have in common"
    ]


def said_of_doubles(name: str, column: Column, array: Any) -> list[str]:
    """A sentence about a feature of numbers so large that double precision does not tell all of them apart."""
    if column.reading.kind != "number" or column.numbers is None:
        return []
    numbers = np.unique(column.numbers[~np.isnan(column.numbers)])
    most = float(np.abs(numbers).max(initial=0.0))
    if most < EXACT or (words := len(words_of(array).distinct)) <= len(numbers):
        return []
    return [
        f"{name}: its {words:,} different numbers are {len(numbers):,} in double precision, whose steps are "
        f"{np.spacing(most):,.0f} at this size; subtract what they have in common"
    ]


def said_of_counting(name: str, column: Column) -> list[str]:
    """A sentence about a feature that counts the rows, in whatever order they stand."""
    if column.reading.kind != "number" or column.numbers is None or len(column.numbers) < _MANY:
        return []
    counts = bool((np.diff(np.sort(column.numbers)) == 1).all())
    return [f"{name}: it counts the rows, and is a feature; --drop it if it is none"] if counts else []


def _empty(column: Column, training: npt.NDArray[np.bool_]) -> bool:
    if column.numbers is not None:
        return bool(np.isnan(column.numbers[training]).all())
    assert column.cells is not None
    return bool((column.cells.codes[training] < 0).all())


def said_of_unseen(known: ColumnSchema, column: Column, training: Marks, tests: Marks) -> list[str]:
    """A sentence about categories of test rows that no training row has.

    Args:
        known: the column as training rows say it.
        column: its cells.
        training, tests: which rows are training and test rows [N].
    """
    if known.kind != "category" or column.cells is None:
        return []
    codes = column.cells.codes
    met = np.zeros(len(column.cells.words) + 1, dtype=np.bool_)
    met[codes[training]] = True
    met[-1] = True  # an empty cell
    rows = int((tests & ~met[codes]).sum())
    words = [column.cells.words[code] for code in np.unique(codes[tests & ~met[codes]])]
    if not rows:
        return []
    shown = ", ".join(quoted(word, 40) for word in words[:3]) + (", …" if len(words) > 3 else "")
    return [f"{known.name}: {counted(rows, 'test row')} with what no training row has ({shown}); read as none"]


def known_features(raw: RawTable, schema: TableSchema) -> tuple[Rows, list[str]]:
    """A table's rows as a run's inputs before scaling, and sentences about what is strange in them.

    Args:
        raw: the table.
        schema: of the run.

    Raises:
        DataError: a column is missing, or a cell is not what the column held in training (line and column named).
    """
    check_columns(raw.path, raw.columns, schema.needed, raw.unread)
    columns, strange = {}, []
    for known in schema.features:
        if known.seconds is None and known.name in raw.seconds:
            raise DataError(
                f"{raw.path}: the column {quoted(known.name)} holds durations, and an earlier version, by which this "
                "run was trained, took them for numbers of the unit that they were stored in; write it as such numbers"
            )
        column = _read(raw, known)
        columns[known.name] = column
        if column.missing and not known.missing:
            filled = "none of the categories" if known.kind == "category" else _shown(known.kind, known.fill)
            strange.append(
                f"{known.name}: {column.missing:,} of {raw.rows:,} rows {'lacks' if column.missing == 1 else 'lack'} "
                f"it, which no training row did; "
                f"{filled} stands for it"
            )
        if known.kind == "category":
            words = unseen(known, column)
            rows = int(column.cells.counts[np.isin(column.cells.words, words)].sum()) if column.cells else 0
            if rows:
                shown = ", ".join(quoted(word, 40) for word in words[:3])
                strange.append(
                    f"{known.name}: {rows:,} {'row holds' if rows == 1 else 'rows hold'} what the model has no input "
                    f"for ({shown}); read as none"
                )
        elif column.numbers is not None and known.low is not None and known.high is not None:
            plain = known.kind == "number" and known.decimal == "point" and is_text(raw.columns[known.name].type)
            numbers = bare_array(raw.columns[known.name], known.affix) if plain else None
            if numbers is not None and (word := seems_grouped(numbers)) is not None:
                strange.append(
                    f"{known.name}: the point in {quoted(word)} seems to mark thousands, and is read as a decimal one; "
                    f"else say {option('--kinds', f'{known.name}=comma-number')}"
                )
            outside = int(((column.numbers < known.low) | (column.numbers > known.high)).sum())
            far = _far_outside(known, column)
            if 2 * outside > raw.rows and raw.rows > 1:
                strange.append(
                    f"{known.name}: {outside:,} of {raw.rows:,} rows lie outside what training rows had "
                    f"({_range_of(known)}); is it in another unit?"
                )
            elif far.any():
                few = f"{far.sum():,} of {raw.rows:,} rows {'lies' if far.sum() == 1 else 'lie'}"
                strange.append(
                    f"{known.name}: {few if raw.rows > 1 else 'the row lies'} far outside what training rows had "
                    f"({_range_of(known)}), first in {raw.where(int(np.argmax(far)))}"
                )
    return encode(schema, columns, raw.rows), strange


def _read(raw: RawTable, known: ColumnSchema) -> Column:
    """A feature's column as the run has read it."""
    return read_column(raw.path, known.name, raw.columns[known.name], known.reading, raw.where, truths=known.truths)


def strange_cells(raw: RawTable, schema: TableSchema) -> list[tuple[str, ...]]:
    """Of each row [N] what is strange in it: a category without an input of its own, a cell that is empty where none of
    a training row was, and what lies far outside what training rows had.
    """
    found: list[list[str]] = [[] for _ in range(raw.rows)]
    for known in schema.features:
        column = _read(raw, known)
        if known.kind == "category":
            cells = column.cells
            assert cells is not None
            unknown = np.array([*(place < 0 for place in cells.places(known.categories, known.apart)), False])
            for row in np.flatnonzero(unknown[cells.codes]):
                found[row].append(f"{known.name}: {quoted(cells.words[cells.codes[row]], 40)} is read as none")
        elif column.numbers is not None:
            empty = np.isnan(column.numbers) if not known.missing else np.zeros(raw.rows, dtype=bool)
            for row in np.flatnonzero(empty):
                found[row].append(
                    f"{known.name}: empty, which no training row was; {_shown(known.kind, known.fill)} is taken"
                )
            for row in np.flatnonzero(_far_outside(known, column)):
                found[row].append(f"{known.name}: far outside what training rows had ({_range_of(known)})")
    return [tuple(notes) for notes in found]


def _far_outside(known: ColumnSchema, column: Column) -> npt.NDArray[np.bool_]:
    """Which rows [N] lie further outside a column's training rows than these lie from each other."""
    if column.numbers is None or known.low is None or known.high is None:
        return np.zeros(len(column.numbers) if column.numbers is not None else 0, dtype=bool)
    wide = known.high - known.low
    with np.errstate(invalid="ignore"):
        return np.asarray((column.numbers < known.low - wide) | (column.numbers > known.high + wide))


def _range_of(known: ColumnSchema) -> str:
    assert known.low is not None
    assert known.high is not None
    return f"{_shown(known.kind, known.low)} to {_shown(known.kind, known.high)}"


def _shown(kind: str, value: float) -> str:
    return str(np.datetime64(int(value), "D")) if kind == "date" else f"{value:g}"


def ignored(names: Iterable[str], schema: TableSchema) -> list[str]:
    """A sentence about columns that the run does not know, if there are any."""
    known = {*schema.needed, *schema.targets, *schema.dropped, *schema.beside, schema.client_column}
    left = [quoted(name, 40) for name in names if plain_name(name) not in known]
    return [f"ignored: {', '.join(left[:5])}{' …' if len(left) > 5 else ''}"] if left else []
