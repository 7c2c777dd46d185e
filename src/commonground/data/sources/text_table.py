"""Your own table of texts: a text or two in each row, a label, and who each row belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commonground.data.arrays import Array
from commonground.data.names import sorted_names
from commonground.data.sources.table import cells_of, given_split, held_out, positions
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import read_raw
from commonground.data.text.samples import TextData, TextSamples
from commonground.errors import DataError

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
    path: Path,
    *,
    label: str = "label",
    client_column: str | None = None,
    seed: int = 0,
    options: TableOptions | None = None,
) -> TextData:
    """Texts from a table (:data:`~commonground.data.tables.read.FORMS`).

    The texts are in the columns that the options name, or in a column ``text`` or ``sentence``, or in two,
    ``sentence1`` and ``sentence2`` (see :data:`TEXT_COLUMNS`). A column ``split`` of ``train`` and ``test`` says which
    rows are test rows; without it a quarter of each client's rows (of each class's rows when there is no client column)
    is held out at random. Every other column may say whom a row belongs to. In a .tsv file quotation marks are ordinary
    characters, as in GLUE's.

    Args:
        path: the file.
        label: the label's column; its values may be any text and become classes in sorted order.
        client_column: the column that says whom a row belongs to.
        seed: keys the hold-out.
        options: names of text columns, columns to drop, separator and encoding, and the column that says the split.

    Raises:
        DataError: the file is missing or no such table, or a cell is empty (line and column named).
    """
    options = options or TableOptions()
    client_column = client_column or options.client_column
    raw = read_raw(path, options.separator, options.encoding, quotes=".tsv" not in path.name.lower())
    header = [name for name in raw.names if name not in options.drop]
    texts = options.text_column or text_columns(str(path), header)
    if len(texts) > 2:
        raise DataError(f"{path}: a text or a pair of texts is read, and {len(texts)} columns are named")
    for column in filter(None, (*texts, label, client_column)):
        if column not in header:
            raise DataError(f"{path} has no column {column!r}; its columns are: {', '.join(header)}")
        if column in texts and column in (label, client_column):
            raise DataError(f"{path}: the column {column!r} cannot be both the text and another column")
    if label == client_column:
        raise DataError(f"{path}: the column {label!r} cannot be both the label and the client column")
    lines = raw.numbers()
    columns = {name: _strings(raw.columns[name]) for name in header}
    labels = cells_of(path, label, columns[label], lines)
    owners = None if client_column is None else cells_of(path, client_column, columns[client_column], lines)
    class_names = sorted_names(labels)
    split = options.split_column or "split"
    if split in header and client_column != split:
        is_test = given_split(path, columns[split], lines)
    else:
        is_test = held_out(path, labels if owners is None else owners, owners is not None, seed)
    if is_test.all() or not is_test.any():
        raise DataError(
            f"{path} has {(~is_test).sum()} training rows and {is_test.sum()} test rows; both need at least 1"
        )
    others = [name for name in header if name not in (*texts, label, split) and all(map(str.strip, columns[name]))]
    values: dict[str, Array] = {name: np.array([cell.strip() for cell in columns[name]]) for name in others}
    y = positions(labels, class_names)

    def part(chosen: Array) -> TextSamples:
        index = np.flatnonzero(chosen).tolist()
        first, *second = ([columns[name][i].strip() for i in index] for name in texts)
        return TextSamples(
            first,
            second[0] if second else None,
            y[chosen],
            {name: cells[chosen] for name, cells in values.items()},
            str(path),
            raw.unit,
            [lines[i] for i in index],
        )

    return TextData(path.name, part(~is_test), part(is_test), class_names)


def _strings(array: Any) -> list[str]:
    """A column's cells as texts, empty where there is none."""
    return ["" if value is None else str(value) for value in array.to_pylist()]


def text_columns(origin: str, names: Sequence[str]) -> tuple[str, ...]:
    """The column or columns that hold the texts.

    Raises:
        DataError: there are none.
    """
    for columns in TEXT_COLUMNS:
        if all(name in names for name in columns):
            return columns
    raise DataError(
        f"{origin} has no column 'text' or 'sentence', nor 'sentence1' and 'sentence2'; its columns are: "
        f"{', '.join(names)}"
    )
