"""What a table holds, before anybody trains on it: columns, clients, what is suspicious, and the command to run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.counted import counted
from commonground.data.sources.text_table import TEXT_COLUMNS
from commonground.data.tables.affixes import bare_array
from commonground.data.tables.cells import Cells, is_text, plain_numbers, words_of
from commonground.data.tables.divide import names_of_nothing
from commonground.data.tables.features import check_columns, why_not
from commonground.data.tables.huggingface import SPLIT
from commonground.data.tables.kinds import Column
from commonground.data.tables.leaks import determines
from commonground.data.tables.notation import check_point, column_of
from commonground.data.tables.raw import FILE, with_files
from commonground.data.tables.read import RawTable, read_raw
from commonground.data.tables.targets import is_quantity
from commonground.errors import DataError
from commonground.name_lists import listed, plain_name
from commonground.quoting import quoted

__all__ = ["ColumnReport", "Inspection", "inspect_table"]

_CLIENTS = re.compile(
    r"(?i)^(customer|client|user|patient|person|hospital|clinic|site|store|shop|branch|silo|school|device|machine|"
    r"account|company|kunde|filiale|owner|speaker|author|group)s?([ _-]?(id|nr|no|name|number))?$"
)
_TARGETS = ("label", "target", "class", "y", "outcome", "churn", "renewed", "default", "price", "score", "diagnosis")
_NUMBERED = re.compile(r"(?i)(^|[ _-])(id|nr|no|index|row|key|uuid)$")
_NUMBERS = ("commonground", "train", "fedrep")
_TEXTS = ("commonground", "train", "lora", "--model", "hf:sentence-transformers/all-MiniLM-L6-v2")
FEW = 10  # rows of a client below which it is said

_NUMBERS_ROWS = "numbers the rows: perhaps --drop it"


@dataclass(frozen=True)
class ColumnReport:
    """A column, for people.

    Attributes:
        name: its name.
        kind: what it holds; ``mixed`` if its cells do not fit together.
        missing: rows without a value.
        distinct: different values.
        example: the smallest and largest number or date, or the most frequent words.
        suspicious: why it should perhaps be no feature; empty if nothing is.
    """

    name: str
    kind: str
    missing: int
    distinct: int
    example: str
    suspicious: str = ""


@dataclass(frozen=True)
class Inspection:
    """A table, for people.

    Attributes:
        path: the file.
        rows: how many.
        notes: how it was read.
        columns: a report each.
        client_column, target, task: as given, or proposed; None if there is nothing to propose.
        clients: how many there are.
        sizes: rows of a client: ``min``, ``median``, ``max``, and how many have ``one`` row and ``few``; where a column
            says which are test rows, how many have but training or but test rows, ``one_sided``.
        split: the column that says so; None if there is none.
        drop: columns that had better be left out.
        command: what to run.
        text_command: what to run on a column of texts, with a model that reads them; empty if there is none.
    """

    path: str
    rows: int
    notes: tuple[str, ...]
    columns: tuple[ColumnReport, ...]
    client_column: str | None
    target: str | None
    task: str | None
    clients: int = 0
    sizes: dict[str, float] = field(default_factory=dict)
    split: str | None = None
    drop: tuple[str, ...] = ()
    command: str = ""
    text_command: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def inspect_table(
    path: Path,
    *,
    client_column: str | None = None,
    target: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
) -> Inspection:
    """Look at a table.

    Args:
        path: the file.
        client_column, target: the columns of these roles; by default what their names suggest.
        separator, encoding: of a text file.

    Raises:
        DataError: it is no table, or has no such column.
    """
    client_column, target = (None if name is None else plain_name(name) for name in (client_column, target))
    raw = read_raw(path, separator, encoding, client_column=client_column)
    check_columns(path, raw.columns, [name for name in (client_column, target) if name is not None], raw.unread)
    client_column = client_column or _proposed_client(raw, target) or (FILE if len(raw.files) > 1 else None)
    raw = with_files(raw, client_column)
    columns = {name: _understood(raw, name) for name in raw.names}
    target = target or _proposed_target(raw, client_column)
    task, y = None, None
    if target is not None:
        numbers = words_of(raw.columns[target])
        task = "regression" if is_quantity(numbers, raw.rows) else "classification"
        y = numbers if task == "regression" else words_of(raw.columns[target], keep=True)
    named = (client_column, target if task == "classification" else None)
    reports = tuple(
        _report(raw, name, column, None if name in (client_column, target) else y, task, name in named)
        for name, column in columns.items()
    )
    drop = tuple(
        report.name
        for report in reports
        if report.name not in (client_column, target)
        and (report.kind == "mixed" or "target" in report.suspicious or report.suspicious == _NUMBERS_ROWS)
    )
    names, sizes, empty = 0, {}, 0
    split = _split(raw, client_column, target)
    if client_column is not None:
        cells = words_of(raw.columns[client_column], keep=True)
        if not cells.words:
            raise DataError(f"{path}: the column {quoted(client_column)} names no client; all its cells are empty")
        names, sizes = len(cells.counts), _sizes(cells.counts) | _one_sided(raw, cells, split)
        empty = int((cells.codes < 0).sum())
    lost = [f"{counted(empty, 'row')} without a client, which --missing-client drop leaves out"] if empty else []
    beside = [report for report in reports if report.name not in (client_column, target, split, *drop)]
    command = text_command = ""
    if target is not None:
        said = _said(path, client_column, target, sizes, separator, encoding)
        said += ["--split-column", split] if split not in (None, SPLIT) else []
        said += ["--missing-target", "drop"] if y is not None and (y.codes < 0).any() else []
        said += ["--missing-client", "drop"] if empty else []
        command, text_command = _commands(path, said, task, beside, drop)
    notes = (*raw.notes, *names_of_nothing(raw, named), *lost)
    roles = (client_column, target, task)
    return Inspection(str(path), raw.rows, notes, reports, *roles, names, sizes, split, drop, command, text_command)


def _understood(raw: RawTable, name: str) -> Column | str:
    """The column, or why it cannot be read."""
    try:
        column = column_of(raw, name)
        plain = column.reading.kind == "number" and column.reading.decimal == "point"
        if plain and is_text(raw.columns[name].type):
            check_point(raw.path, name, bare_array(raw.columns[name], column.reading.affix))
        return column
    except DataError as error:
        return str(error).removeprefix(f"{raw.path}, ")


def _report(
    raw: RawTable, name: str, column: Column | str, y: Cells | None, task: str | None, named: bool
) -> ColumnReport:
    """What there is of a column; ``named`` if its words are names of clients or classes, whatever they are."""
    cells = words_of(raw.columns[name], keep=named)
    missing, distinct = int((cells.codes < 0).sum()), len(cells.words)
    often = [cells.words[i] for i in np.argsort(-cells.counts, kind="stable")[:3]]
    example = ", ".join(often) + (", …" if distinct > 3 else "")
    if isinstance(column, str):
        return ColumnReport(name, "mixed", missing, distinct, example, column)
    kind, numbers = column.reading.kind, column.numbers
    if numbers is not None and kind != "boolean" and not np.isnan(numbers).all():
        example = " to ".join(_shown(kind, value) for value in (np.nanmin(numbers), np.nanmax(numbers)))
    return ColumnReport(name, kind, missing, distinct, example, _suspicion(column, distinct, raw.rows, y, task))


def _shown(kind: str, value: float) -> str:
    return str(np.datetime64(int(value), "D")) if kind == "date" else f"{value:g}"


def _suspicion(column: Column, distinct: int, rows: int, y: Cells | None, task: str | None) -> str:
    """Why a column had better be no feature."""
    kind, numbers = column.reading.kind, column.numbers
    if distinct <= 1:
        return "is always the same" if distinct else "is empty"
    if kind == "units":
        return f"{why_not(column.reading)}: left out; write all of them in one"
    if kind in ("id", "text"):
        return {"id": "names a row: left out", "text": "is a text: left out, or for a model hf:…"}[kind]
    whole = numbers is not None and kind == "number" and bool((numbers == np.round(numbers)).all())
    if numbers is not None and whole and distinct == rows and rows > 20:
        counted = bool((np.abs(np.diff(numbers)) == 1).all())
        if counted or _NUMBERED.search(column.name):
            return _NUMBERS_ROWS
    if y is not None and task is not None and determines(column, y, task):
        return "determines the target: known only afterwards?"
    return column.reading.note


def _proposed_client(raw: RawTable, target: str | None) -> str | None:
    """A column whose name is that of a client, and whose values come again."""
    for name in raw.names:
        if name != target and _CLIENTS.match(name):
            counts = words_of(raw.columns[name]).counts
            if 1 < len(counts) <= raw.rows / 2:
                return name
    return None


def _proposed_target(raw: RawTable, client_column: str | None) -> str | None:
    """A column whose name is that of a target, else the last one; none that is always the same, or names every row."""
    counts = {name: words_of(raw.columns[name]).counts for name in raw.names if name != client_column}
    known = [
        name
        for name, of in counts.items()
        if len(of) > 1 and not (len(of) == raw.rows and plain_numbers(raw.columns[name]) is None)
    ]
    small = {name.lower(): name for name in known}
    found = next((small[name] for name in _TARGETS if name in small), None)
    return found or next(reversed(known), None)


def _sizes(counts: npt.NDArray[np.int64]) -> dict[str, float]:
    return {
        "min": int(counts.min()),
        "median": float(np.median(counts)),
        "max": int(counts.max()),
        "one": int((counts == 1).sum()),
        "few": int((counts < FEW).sum()),
    }


def _split(raw: RawTable, client_column: str | None, target: str | None) -> str | None:
    """The column that says which are test rows: it is called so, or has the two words and nothing else."""
    if SPLIT in raw.columns:
        return SPLIT
    for name in raw.names:
        cells = words_of(raw.columns[name], keep=True)
        full = not (cells.codes < 0).any()
        if name not in (client_column, target) and full and {w.lower() for w in cells.words} == {"train", "test"}:
            return name
    return None


def _one_sided(raw: RawTable, clients: Cells, split: str | None) -> dict[str, float]:
    """How many clients such a column leaves without training or without test rows, if there is one."""
    if split is None:
        return {}
    parts = words_of(raw.columns[split])
    inside = (clients.codes >= 0) & (parts.codes >= 0)
    pairs = {*zip(clients.codes[inside].tolist(), parts.codes[inside].tolist(), strict=True)}
    sides = np.bincount([client for client, _ in pairs], minlength=len(clients.counts))
    return {"one_sided": int((sides < len(parts.words)).sum())}


def _commands(
    path: Path, said: Sequence[str], task: str | None, beside: Sequence[ColumnReport], drop: Sequence[str]
) -> tuple[str, str]:
    """The command that trains on the table, and the one that trains on its texts; empty where there is none.

    Args:
        path: of the table.
        said: what both have to say of it.
        task: what is learnt.
        beside: reports on the columns that may be inputs.
        drop: those that had better be left out.
    """
    end = ["--rounds", "50", "--out", f"runs/{path.name.split('.')[0]}"]
    texts = [report.name for report in beside if report.kind == "text"]
    text_command = ""
    if texts and task == "classification":
        usual = any({*names} <= {*texts} for names in TEXT_COLUMNS)  # found without being named
        named = [] if usual else ["--text-column", texts[0]]
        text_command = shlex.join([*_TEXTS, *said, *named, *end])
    if all(report.suspicious for report in beside):  # texts are, to methods that read numbers
        return text_command, text_command
    more = ["--task", "regression"] if task == "regression" else []
    more += ["--drop", listed(drop)] if drop else []
    return shlex.join([*_NUMBERS, *said, *more, *end]), text_command


def _said(
    path: Path,
    client_column: str | None,
    target: str,
    sizes: dict[str, float],
    separator: str | None,
    encoding: str | None,
) -> list[str]:
    """What a command has to say of the table."""
    parts = ["--data", str(path)]
    parts += ["--client-column", client_column] if client_column is not None else ["--clients", "10"]
    parts += ["--target", target]
    one, one_sided = sizes.get("one", 0), sizes.get("one_sided", 0)
    # A single row makes no client to train and to test, and for its sake no other one is to lose its own model. Clients
    # that a column leaves without test rows may have none together.
    parts += ["--few-rows", "drop" if one == 1 or one_sided else "pool"] if one or one_sided else []
    parts += ["--separator", separator] if separator else []
    return parts + (["--encoding", encoding] if encoding else [])
