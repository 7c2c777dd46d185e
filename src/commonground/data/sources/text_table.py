"""Your own table of texts: a text or two in each row, a label, and who each row belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from commonground.data.arrays import Array
from commonground.data.source import Origin
from commonground.data.tables.divide import complete_rows, divided, names_of_nothing, split_column
from commonground.data.tables.features import check_columns
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import RawTable, read_raw
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.targets import read_targets
from commonground.data.text.samples import TextData, TextSamples
from commonground.errors import ConfigError, DataError
from commonground.quoting import quoted

__all__ = ["TEXT_COLUMNS", "load_text_table", "text_columns"]

TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("text",),
    ("sentence",),
)
"""Columns that hold the texts; the first of these that a table has is read."""


def load_text_table(
    path: Path | RawTable,
    *,
    label: str = "label",
    client_column: str | None = None,
    seed: int = 0,
    options: TableOptions | None = None,
    like: TableSchema | None = None,
    owner: str | None = None,
) -> TextData:
    """Texts from a table (:data:`~commonground.data.tables.read.FORMS`).

    The texts are in the columns that the options name, or in a column ``text`` or ``sentence``, or in two,
    ``sentence1`` and ``sentence2`` (see :data:`TEXT_COLUMNS`). Test rows are chosen as in other tables
    (:func:`~commonground.data.tables.load.load_table`): by a column ``split`` or one that is named, by time, by group,
    or at random; so are clients with few rows and rows without a label. Every other column may say whom a row belongs
    to. In a .tsv file quotation marks are ordinary characters, as in GLUE's.

    Args:
        path: the file, or what was read of one.
        label: the label's column; its values may be any text and become classes in sorted order.
        client_column: the column that says whom a row belongs to.
        seed: keys the hold-out.
        options: names of text columns, columns to drop, separator and encoding, and how rows are split.
        like: of a run's table: how it was split and in which columns its texts were, which holds here as well unless
            the options say otherwise; and its classes, if they hold all of this table's.
        owner: whose all rows are, if they are one client's (:func:`~commonground.data.tables.divide.divided`).

    Raises:
        ConfigError: an option is for columns of numbers.
        DataError: the file is missing or no such table, or a cell is empty (line and column named).
    """
    options = replace(
        options or TableOptions(), client_column=client_column or (options or TableOptions()).client_column
    )
    if isinstance(path, RawTable):
        raw, path = path, path.path
    else:
        quotes = ".tsv" not in path.name.lower()
        raw = read_raw(path, options.separator, options.encoding, quotes=quotes, client_column=options.client_column)
    asked: Mapping[str, Any] = {} if like is None else like.asked
    options, unlike = options.as_asked(asked, raw.columns)
    _check_options(options)
    header = [name for name in raw.names if name not in options.drop]
    texts = _roles(raw, header, label, options, asked.get("text_column", ()))
    raw, lacking = complete_rows(raw, [label], "classification", options)
    targets = read_targets(raw, [label], "classification", () if like is None else like.class_names)
    given = split_column(raw, [label], options)
    rows = divided(raw, targets, given, options, seed, owner)
    lines = raw.numbers()
    beside = (*texts, label, given, options.time_column, options.group_column, options.client_column, *options.drop)
    columns = {name: _strings(raw.columns[name]) for name in raw.names if name in texts or name not in beside}
    for name in texts:
        _check_full(path, raw, name, columns[name])
    values: dict[str, Array] = {n: np.array(cells) for n, cells in columns.items() if n not in texts and all(cells)}
    if options.client_column is not None:
        values[options.client_column] = np.array([*rows.owners.names, ""])[rows.owners.codes]

    def part(chosen: Array) -> TextSamples:
        index = np.flatnonzero(chosen).tolist()
        first, *second = ([columns[name][i] for i in index] for name in texts)
        return TextSamples(
            first,
            second[0] if second else None,
            targets.y[chosen],
            {name: cells[chosen] for name, cells in values.items()},
            str(path),
            raw.unit,
            [lines[i] for i in index],
        )

    odd = names_of_nothing(raw, (label, options.client_column))
    strange = targets.strange(rows.train, rows.test, known=like is not None)
    notes = (*raw.notes, *unlike, *rows.notes, *odd, *([strange] if strange else []))
    about = TableSchema((), (label,), "classification", targets.names, few_rows=rows.owners.few, split=rows.how,
                        missing_targets=lacking, notes=notes, scaling="none")  # fmt: skip
    read = {
        **about.summary(),
        "text_columns": list(texts),
        "label_column": label,
        **({"client_column": options.client_column} if options.client_column is not None else {}),
        **({"times": rows.kinds} if rows.kinds else {}),
        **rows.owners.about_few(),
    }
    return TextData(
        path.name,
        part(rows.train),
        part(rows.test),
        targets.names,
        origin=Origin(read=read, test_names=raw.places(rows.test), related=rows.related),
    )


def _check_options(options: TableOptions) -> None:
    """Refuse what says how numbers are read, of which texts have none."""
    given = {"kinds": set(options.kinds) - {options.time_column}, "scaling": options.scaling != TableOptions().scaling}
    for name, said in given.items():
        if said:
            raise ConfigError(
                f"--{name} is for columns of numbers and categories, and a model of texts reads texts alone"
            )


def _roles(
    raw: RawTable, header: Sequence[str], label: str, options: TableOptions, usual: Sequence[str]
) -> tuple[str, ...]:
    """The columns of texts, the usual ones if they are there; every column that is named is, and none has two roles.

    Raises:
        DataError: names the one that is not.
    """
    path, client_column = raw.path, options.client_column
    texts = options.text_column or text_columns(raw, header, usual)
    if len(texts) > 2:
        raise DataError(f"{path}: a text or a pair of texts is read, and {len(texts)} columns are named")
    others = (label, client_column, options.split_column, options.time_column, options.group_column)
    check_columns(path, header, filter(None, (*texts, *others)), raw.unread)
    for column in texts:
        if column in others:
            raise DataError(f"{path}: the column {column!r} cannot be both the text and another column")
    if label in others[1:]:
        raise DataError(f"{path}: the column {label!r} cannot be both the label and another column")
    return texts


def _check_full(path: Path, raw: RawTable, name: str, cells: Sequence[str]) -> None:
    """Refuse texts of which some are empty.

    Raises:
        DataError: the first one's place, and how many there are.
    """
    empty = [row for row, text in enumerate(cells) if not text]
    if empty:
        more = f" ({len(empty):,} cells of the column are)" if len(empty) > 1 else ""
        raise DataError(
            f"{path}, {raw.unit} {raw.numbers()[empty[0]]}: the text {quoted(name)} is empty{more}; leave such rows "
            "out of the table"
        )


def _strings(array: Any) -> list[str]:
    """A column's cells as texts without blanks around them, empty where there is none."""
    return ["" if value is None else str(value).strip() for value in array.to_pylist()]


def text_columns(raw: RawTable, names: Sequence[str], usual: Sequence[str] = ()) -> tuple[str, ...]:
    """The column or columns that hold the texts.

    Args:
        raw: the table.
        names: of those of its columns that may.
        usual: those of a table that this one may be like, taken if they are there.

    Raises:
        DataError: there are none.
    """
    candidates: list[tuple[str, ...]] = [*([tuple(usual)] if usual else []), *TEXT_COLUMNS]
    for columns in candidates:
        if all(name in names for name in columns):
            return columns
    for name in (name for columns in candidates for name in columns if name in raw.unread):
        raise DataError(f"{raw.path}: the column {quoted(name)} holds {raw.unread[name]}; write one text a row")
    raise DataError(
        f"{raw.path} has no column 'text' or 'sentence', nor 'sentence1' and 'sentence2'; its columns are: "
        f"{', '.join(names)}"
    )
