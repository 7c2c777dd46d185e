"""A table of JSON lines: an object each, whose fields are numbers, words, truths or nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from commonground.data.tables.cells import EXACT
from commonground.data.tables.raw import RawTable, counted, raw_of_arrow, too_large
from commonground.data.tables.textfile import TextFile, read_text_file
from commonground.errors import DataError
from commonground.quoting import quoted

__all__ = ["first_objects", "read_json_lines"]

_BLANKS = re.compile(r"\s*(?=\S)")
_ALIKE = "the cells of a column are of one kind: write all of them as numbers, or all as texts"


def first_objects(path: Path, most: int) -> Iterator[dict[str, Any]]:
    """The objects of the first lines.

    Raises:
        DataError, ValueError, TypeError: a line holds none, or the file cannot be read.
    """
    lines = (line for line in read_text_file(path).content.splitlines() if line.strip())
    for line in islice(lines, most):
        yield dict(json.loads(line))


def read_json_lines(path: Path, encoding: str | None) -> RawTable:
    """Read such a file.

    Args:
        path: the file.
        encoding: of its text; found if not given.

    Raises:
        ConfigError: there is no such encoding.
        DataError: there is no such file; a line is no JSON object, or holds another kind than those above it (line and
            column named); a whole number has more than 64 bits.
    """
    import pyarrow as pa
    from pyarrow import json as arrow_json

    file = read_text_file(path, ",", encoding)
    if not file.content.strip():
        raise DataError(f"{path} has 0 rows below its header; at least one object is expected")
    try:
        table = arrow_json.read_json(pa.BufferReader(file.content))
        times = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        if times:  # which are texts in the file, and may be names, classes or texts to the model
            texts = pa.schema([(name, pa.string()) for name in times])
            as_written = arrow_json.ParseOptions(explicit_schema=texts, unexpected_field_behavior="infer")
            again = arrow_json.read_json(pa.BufferReader(file.content), parse_options=as_written)
            table = again.select(table.column_names)
    except pa.ArrowException as error:
        raise DataError(f"{path} could not be read as a table: {_bad_object(file, str(error))}") from None
    lines = partial(_lines_of_objects, file, len(table))
    raw = raw_of_arrow(path, _with_whole_numbers(path, table, file, lines))
    notes = (f"read as {file.encoding}",) if file.encoding not in ("utf-8", "utf-8-sig") else ()
    where = partial(_line_of_object, lines)
    return replace(raw, where=where, numbers=lines, unit="line", notes=(*raw.notes, *notes))


# -- large whole numbers --------------------------------------------------------------------------------------------


def _with_whole_numbers(path: Path, table: Any, file: TextFile, lines: Callable[[], list[int]]) -> Any:
    """The table with its columns of whole numbers as such: Arrow takes those from 2^63 on for doubles, of which many
    are one.

    Raises:
        DataError: one has more than 64 bits, or is from 2^63 on in a column with negative ones; line and column are
            named.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    doubles = [name for name in table.column_names if pa.types.is_float64(table.schema.field(name).type)]
    large = [name for name in doubles if (pc.max(pc.abs(table.column(name))).as_py() or 0.0) >= EXACT]
    cells: dict[str, list[Any]] = {name: [] for name in large}
    for row in _objects(file) if large else ():
        for name in large:
            cells[name].append(row.get(name))
    for name in large:
        if len(cells[name]) != len(table) or any(isinstance(cell, float) for cell in cells[name]):
            continue
        there = [cell for cell in cells[name] if cell is not None]
        if min(there) < 0 or max(there) >= 2**64:
            widest = max(there, key=abs)
            place = f"{path}, line {lines()[cells[name].index(widest)]}"
            raise DataError(too_large(place, name, widest, min(there)))
        table = table.set_column(table.column_names.index(name), name, pa.array(cells[name], pa.uint64()))
    return table


def _objects(file: TextFile) -> Iterator[dict[str, Any]]:
    """The objects that Arrow finds, which may be several in a line, or one over several."""
    text, decoder, place = file.content.decode("utf-8", "replace"), json.JSONDecoder(), 0
    while found := _BLANKS.match(text, place):
        row, place = decoder.raw_decode(text, found.end())
        yield row


# -- what is wrong, and where ---------------------------------------------------------------------------------------


def _bad_object(file: TextFile, reason: str) -> str:
    """Why Arrow does not read a file, with the line where that is, and what to do."""
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice.extend(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        return dict(pairs)

    met: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(file.content.splitlines(), 1):
        try:
            row = json.loads(line, object_pairs_hook=once) if line.strip() else {}
        except ValueError:
            return _no_lines(file) or f"line {number} is no JSON"
        if not isinstance(row, dict):
            return _no_lines(file) or f"line {number} is no JSON object; write one object a line"
        if twice:
            return f"line {number} has the field {quoted(twice[0])} twice; every column needs its own name"
        for name, kind in _kinds("", row):
            first, usual = met.setdefault(name, (number, kind))
            if kind != usual:
                return f"line {number} holds a {kind} in {quoted(name)}, and line {first} a {usual}; {_ALIKE}"
    return quoted(re.sub(r" in row \d+", "", reason))  # which counts from 0, and in each part of the file anew


def _no_lines(file: TextFile) -> str:
    """What a file is that is JSON as a whole, and no lines; empty for others."""
    try:
        whole = json.loads(file.content)
    except ValueError:
        return ""
    what = "a JSON array" if isinstance(whole, list) else "a single JSON value over several lines"
    return (
        f"it is {what}, and one object a line is needed, without brackets or commas around them; "
        "pd.read_json(…).to_json(…, orient='records', lines=True) writes it so"
    )


def _kinds(name: str, cell: Any) -> Iterator[tuple[str, str]]:
    """What a cell is and, of objects and lists, what their cells are, by the names of their columns."""
    if isinstance(cell, dict):
        if name:
            yield name, "object"
        for key, value in cell.items():
            yield from _kinds(f"{name}.{key}" if name else key, value)
    elif isinstance(cell, list):
        yield name, "list"
        for value in cell:
            yield from _kinds(f"{name}[]", value)
    elif cell is not None:
        yield name, "truth" if isinstance(cell, bool) else "text" if isinstance(cell, str) else "number"


def _line_of_object(lines: Callable[[], list[int]], row: int) -> str:
    return f"line {lines()[row]}"


def _lines_of_objects(file: TextFile, rows: int) -> list[int]:
    """The line of each row; of blank ones there is none."""
    lines = [number for number, line in enumerate(file.content.splitlines(), 1) if line.strip()]
    return lines if len(lines) == rows else counted(rows)
