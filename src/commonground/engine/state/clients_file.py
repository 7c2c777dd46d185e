"""``clients.csv``: a line for every client, written and read some thousands at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from commonground.access import reason
from commonground.engine.rows import Rows
from commonground.engine.state.csv_rows import CsvRows
from commonground.engine.state.files import write_atomically
from commonground.errors import RunError
from commonground.spreadsheet import cell, without_apostrophe

__all__ = ["read_clients", "write_clients"]

LINES = 10_000  # clients whose lines are made at once


def write_clients(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the file; a name is a cell that no spreadsheet computes, the true one is in ``split.json``."""
    write_atomically(path, _lines(rows))


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    names = list(rows[0])
    for start in range(0, len(rows), LINES):
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        if start == 0:
            writer.writeheader()
        writer.writerows({**row, "name": cell(str(row["name"]), numbers=True)} for row in rows[start : start + LINES])
        yield text.getvalue().encode()


def read_clients(path: Path, names: Sequence[str] | None) -> Rows:
    """The rows, numbers as numbers; each is made when it is asked for.

    Args:
        path: of the file.
        names: of all clients, as they are in ``split.json``; None to take those of the file.

    Raises:
        RunError: it cannot be read.
    """
    try:
        return CsvRows(path.read_bytes(), partial(_row, names))
    except (OSError, ValueError, TypeError, KeyError, IndexError, csv.Error) as error:
        raise RunError(f"'{path}' cannot be read: {reason(error, path)}") from None


def _row(names: Sequence[str] | None, texts: dict[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {key: _number(text) if key != "name" else text for key, text in texts.items()}
    row["name"] = without_apostrophe(str(row["name"])) if names is None else names[int(row["client"])]
    return row


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
