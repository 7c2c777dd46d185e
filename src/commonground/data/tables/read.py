"""A table's cells, from whatever kind of file holds it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NoReturn

from commonground.counted import counted as counted_things
from commonground.data.tables.huggingface import is_saved_dataset, read_saved_dataset
from commonground.data.tables.json_lines import first_objects, read_json_lines
from commonground.data.tables.raw import RawTable, check_names, counted, raw_of_arrow, raw_of_frame, with_files
from commonground.data.tables.textfile import TextFile, check_unsaid, read_text_file
from commonground.errors import DataError
from commonground.name_lists import plain_name
from commonground.quoting import quoted

__all__ = ["FORMS", "RawTable", "check_form", "first_rows", "is_table", "raw_of_frame", "read_raw"]

TEXT = (".csv", ".tsv", ".tab", ".txt")
LINES = (".jsonl", ".ndjson")
BLOCK = 1 << 24  # bytes of a text file that are read at once, and by several threads if there are more
SHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")
BINARY = (".parquet", ".pq", ".arrow", ".feather", ".ipc")
FORMS = ".csv, .tsv, .jsonl (each also .gz), .parquet, .arrow, .feather, or a folder of such files"


def is_table(name: str) -> bool:
    """Whether a file's name, or a folder's content, is that of a table that is read here."""
    path = Path(name)
    return _kind(path) != "" or is_saved_dataset(path) or _in_folder(path) != []


def check_form(path: Path) -> None:
    """Refuse files that hold tables in a form that is not read.

    Raises:
        DataError: says how to write it otherwise.
    """
    ending = path.suffix.lower()
    if ending in SHEETS:
        raise DataError(
            f"{path} is a workbook, which is not read: save its sheet as CSV, or, in Python, "
            "load_data(pd.read_excel(…))"
        )
    if ending == ".json":
        raise DataError(
            f"{path} is no table: a .json file is of instructions and answers, or in LEAF's form, which are trained "
            "on as they are; of a table write JSON lines, an object a line "
            "(pd.read_json(…).to_json('table.jsonl', orient='records', lines=True))"
        )


def _kind(path: Path) -> str:
    """``text``, ``lines`` or ``binary`` by the file's ending; empty for others."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(TEXT[:3]):
        return "text"
    if name.endswith(LINES):
        return "lines"
    return "binary" if name.endswith(BINARY) else ""


def _in_folder(path: Path) -> list[Path]:
    """The tables of a folder, sorted by name."""
    if not path.is_dir():
        return []
    return sorted(file for file in path.iterdir() if file.is_file() and _kind(file) and file.name[0] not in "._")


def read_raw(
    path: Path,
    separator: str | None = None,
    encoding: str | None = None,
    *,
    quotes: bool | None = None,
    client_column: str | None = None,
) -> RawTable:
    """Read a table.

    Args:
        path: one of :data:`FORMS`; the files of a folder have the same columns and follow one another by name.
        separator, encoding: of text files; found if not given (:func:`~commonground.data.tables.textfile`).
        quotes: whether a text file's cell may stand in quotation marks; by default not in a .tsv file of texts.
        client_column: which one says whose a row is; of a folder it may be its files (:func:`with_files`).

    Raises:
        ConfigError: an impossible separator or encoding, or one of a file that has none.
        DataError: there is no such file, or it is no table: a row of another length (line named), a column without a
            name of its own, no rows.
    """
    if is_saved_dataset(path):
        check_unsaid(path, separator, encoding)
        return read_saved_dataset(path)
    files = _in_folder(path)
    if files:
        joined = _joined(path, [read_raw(file, separator, encoding, quotes=quotes) for file in files])
        below = [f"{folder.name}/{file.name}" for folder in sorted(path.iterdir()) for file in _in_folder(folder)]
        if below:
            some = f"'{below[0]}'" + (f" and {counted_things(len(below) - 1, 'file')} more" if below[1:] else "")
            joined = replace(joined, notes=(*joined.notes, f"left out: {some}, in folders below"))
        return with_files(joined, client_column)
    if path.is_dir():
        raise DataError(f"the folder {path} holds no table; it may hold files {FORMS.rpartition(', or')[0]}")
    check_form(path)
    kind = _kind(path)
    if kind == "binary":
        check_unsaid(path, separator, encoding)
        table = _read_binary(path)
    elif kind == "lines":
        check_unsaid(path, separator)
        table = read_json_lines(path, encoding)
    else:
        table = _read_text(path, separator, encoding, True if quotes is None else quotes)
    check_names(path, table.names)
    if not table.rows:
        raise DataError(f"{path} has 0 rows below its header; a header line and at least one row are expected")
    return table


def first_rows(path: Path, most: int = 20) -> tuple[list[str], list[dict[str, Any]]]:
    """The names of the columns, or of the first object's fields, and the first rows by them; none if the file cannot be
    read so. Cells of a text file are strings.
    """
    try:
        if _kind(path) == "lines":
            rows = list(first_objects(path, most))
            return list(rows[0]) if rows else [], rows
        if _kind(path) == "text":
            file = read_text_file(path)
            records = (cells for _, cells in _records(file, quotes=file.separator != "\t"))
            names = [plain_name(name) for name in next(records, [])]
            return names, [dict(zip(names, cells, strict=False)) for cells in islice(records, most)]
    except (DataError, ValueError, TypeError, csv.Error):
        pass
    return [], []


# -- text -----------------------------------------------------------------------------------------------------------


def _read_text(path: Path, separator: str | None, encoding: str | None, quotes: bool) -> RawTable:
    """Cells as strings, empty ones as empty strings."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    file = read_text_file(path, separator, encoding)
    names = [plain_name(name) for name in _header(file, quotes)]
    if not names:
        raise DataError(f"{path} has 0 rows below its header; a header line and at least one row are expected")
    if len(names) > 1 and file.separator != " ":
        file = replace(file, content=_without_blank_end(file.content))
    places = [str(place) for place in range(len(names))]
    try:
        table = _beside(
            arrow_csv.read_csv,
            pa.BufferReader(file.content),
            read_options=arrow_csv.ReadOptions(
                column_names=places, block_size=BLOCK, use_threads=len(file.content) > BLOCK
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=file.separator, quote_char='"' if quotes else False, newlines_in_values=quotes
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(places, pa.string()), strings_can_be_null=False, check_utf8=True
            ),
        )
    except pa.ArrowInvalid as error:
        _name_the_line(path, file, quotes, len(names), str(error))
    if quotes and _may_be_unclosed(file, table.columns):
        _check_closed(path, file)
    cells = [column.slice(1) for column in table.columns]
    left = {place: why for place, name in enumerate(names) if not name and (why := _nameless(place, cells[place]))}
    kept = [place for place in range(len(names)) if place not in left]
    check_names(path, names, left)
    columns = {names[place]: cells[place] for place in kept}
    notes = ((file.note,) if file.note else ()) + tuple(left.values())
    where, numbers = partial(_line_of, file, quotes), partial(_lines_of, file, quotes, len(table) - 1)
    return RawTable(path, columns, False, where, numbers, "line", notes)


def _without_blank_end(content: bytes) -> bytes:
    """A text without lines of blanks at its end, which are no rows; blanks of its last cell stay."""
    end = content.find(b"\n", len(content.rstrip(b" \r\n")))
    return content if end < 0 else content[: end + 1]


def _nameless(place: int, cells: Any) -> str:
    """Why a column without a name is left out; empty if it is none that a program wrote beside the table."""
    import pyarrow.compute as pc

    if pc.all(pc.equal(pc.utf8_trim_whitespace(cells), "")).as_py():
        return f"left out: column {place + 1}, which has neither a name nor cells"
    whole = place == 0 and pc.all(pc.match_substring_regex(cells, r"^\d+$")).as_py()
    if whole and pc.count_distinct(cells).as_py() == len(cells):
        return "left out: the first column, which has no name and numbers the rows"
    return ""


def _beside(read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function of pyarrow gives, called in a thread of its own.

    In the main thread it would listen for Ctrl-C by a handler and a C++ thread of its own, which now and then outlives
    a process that ends right afterwards and takes it down ("terminate called without an active exception").
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(read, *args, **kwargs).result()


def _reader(file: TextFile, quotes: bool) -> Any:
    """Python's own, which is slower than Arrow's, and stricter."""
    text = io.TextIOWrapper(io.BytesIO(file.content), "utf-8", "surrogatepass", newline="")
    style: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    return csv.reader(text, delimiter=file.separator, quoting=style, strict=True)


def _records(file: TextFile, quotes: bool) -> Iterator[tuple[int, list[str]]]:
    """The line on which each record ends, and its cells; blank lines are left out."""
    reader = _reader(file, quotes)
    for row in reader:
        if row:
            yield reader.line_num, row


def _header(file: TextFile, quotes: bool) -> list[str]:
    try:
        return next(iter(_records(file, quotes)), (0, []))[1]
    except csv.Error:
        return []


def _line_of(file: TextFile, quotes: bool, row: int) -> str:
    """Found only when somebody asks, by going through the file once more."""
    try:
        for number, (line, _) in enumerate(_records(file, quotes), -1):
            if number == row:
                return f"line {line}"
    except csv.Error:
        pass
    return f"row {row + 1}"


def _lines_of(file: TextFile, quotes: bool, rows: int) -> list[int]:
    """The line of each row; of rows that the stricter reader does not take there is none."""
    try:
        return [line for line, _ in _records(file, quotes)][1:]
    except csv.Error:
        return counted(rows)


def _may_be_unclosed(file: TextFile, columns: Sequence[Any]) -> bool:
    """Whether a quotation mark may have taken lines into its cell that are not of it: Arrow ends such a cell with the
    file, or at the next mark.
    """
    import pyarrow.compute as pc

    marks = file.content.count(b'"')
    return marks % 2 == 1 or (
        marks > 0 and any(pc.any(pc.match_substring_regex(column, "[\r\n]")).as_py() for column in columns)
    )


def _check_closed(path: Path, file: TextFile) -> None:
    """Refuse a cell over several lines that does not end with its quotation mark, or not before the file does.

    Raises:
        DataError: there is one; the line on which it begins is named.
    """
    usual = csv.field_size_limit(max(len(file.content), csv.field_size_limit()))
    try:
        reader, line = _reader(file, quotes=True), 1
        while True:
            try:
                next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # Within one line, as in "a"b, it is clear what was meant, and the reader goes on with the next line.
                if reader.line_num > line or "unexpected end" in str(error):
                    raise DataError(
                        f"{path}, line {line}, opens a quotation mark that no mark at the end of a cell closes, so "
                        "that the lines below would be part of it; close it, double it or take it away"
                    ) from None
            line = reader.line_num + 1
    finally:
        csv.field_size_limit(usual)


def _name_the_line(path: Path, file: TextFile, quotes: bool, cells: int, reason: str) -> NoReturn:
    """Say which line is not like the header."""
    if quotes:
        _check_closed(path, file)
    first = _header(file, quotes)[0]
    comment = f"; line 1, {quoted(first, 40)}, is taken for the names: take comments away" if first[:1] == "#" else ""
    try:
        for line, row in _records(file, quotes):
            if len(row) != cells:
                held = counted_things(len(row), "cell")
                raise DataError(f"{path}, line {line}, has {held}; the header has {cells}{comment}")
    except csv.Error as error:
        raise DataError(f"{path} could not be read as a table: {error}") from None
    raise DataError(f"{path} could not be read as a table: {quoted(reason)}")


# -- other kinds ----------------------------------------------------------------------------------------------------


def _read_binary(path: Path) -> RawTable:
    """Parquet and Arrow's own files (Feather)."""
    import pyarrow as pa
    from pyarrow import feather, parquet

    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        if path.name.lower().endswith((".parquet", ".pq")):
            table = parquet.ParquetFile(path).read()
        else:
            table = feather.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} could not be read as a table: {quoted(str(error))}") from None
    return raw_of_arrow(path, table)


def _joined(path: Path, tables: Sequence[RawTable]) -> RawTable:
    """The rows of all files, one file after the other."""
    import pyarrow as pa

    first = tables[0]
    for table in tables[1:]:
        other = sorted(set(table.names) ^ set(first.names))
        if other or table.typed != first.typed:
            what = (
                f"the column {quoted(other[0])} is in one of them only"
                if other
                else (
                    "one says its columns' types, and the cells of the other are text; write all as one kind of "
                    "file, or give each kind a folder of its own"
                )
            )
            raise DataError(f"{first.path} and {table.path} cannot be one table: {what}")
    try:
        whole = pa.concat_tables(
            [pa.table({name: table.columns[name] for name in first.names}) for table in tables],
            promote_options="permissive",
        )
    except pa.ArrowException as error:
        raise DataError(f"the files in {path} cannot be one table: {quoted(str(error))}") from None
    columns = {name: whole.column(name) for name in first.names}
    notes = tuple(dict.fromkeys(note for table in tables for note in table.notes))
    where = partial(_in_file, [(table.path.name, table.rows, table.where) for table in tables])
    files = tuple((table.path.name, table.rows) for table in tables)
    numbers, notes = partial(counted, len(whole)), (counted_things(len(tables), "file"), *notes)
    zoned = {name for table in tables for name in table.moments}
    everywhere = sorted(name for name in zoned if all(name in table.moments for table in tables))
    moments = {n: pa.chunked_array([c for table in tables for c in table.moments[n].chunks]) for n in everywhere}
    for name in sorted(zoned - {*everywhere}):
        notes = (*notes, f"{name}: times have a zone in some of the files, and count as the clocks show them")
    unread = {name: kind for table in tables for name, kind in table.unread.items()}
    return RawTable(
        path, columns, first.typed, where, numbers, notes=notes, seconds=first.seconds, moments=moments, unread=unread,
        files=files,
    )  # fmt: skip


def _in_file(files: Sequence[tuple[str, int, Callable[[int], str]]], row: int) -> str:
    for name, rows, where in files:
        if row < rows:
            return f"{name}, {where(row)}"
        row -= rows
    raise IndexError(row)
