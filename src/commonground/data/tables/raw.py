"""A table's cells as columns, whatever they were read from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.errors import DataError
from commonground.name_lists import plain_name
from commonground.quoting import quoted

__all__ = [
    "FILE",
    "RawTable",
    "check_names",
    "client_of_file",
    "counted",
    "raw_of_arrow",
    "raw_of_frame",
    "too_large",
    "with_files",
]

FILE = "file"  # as --client-column: each file of a folder is a client's

_INDEX = re.compile(r"__index_level_\d+__")  # as pyarrow calls an index that has no name
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


_ENDINGS = re.compile(r"\.(csv|tsv|tab|txt|jsonl|ndjson|parquet|pq|arrow|feather|ipc)(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class RawTable:
    """Columns as they are in the file.

    Attributes:
        path: the file or folder.
        columns: pyarrow arrays of one length by name; of text files, strings as they stand there.
        typed: whether the file says what type a column is, so that a string is no number.
        where: from a row's number to where it stands, for messages: ``line 3``.
        numbers: the rows' own numbers, in ``unit``.
        unit: ``line`` or ``row``.
        notes: how the file was read, where that is not as usual.
        seconds: columns of durations or times of day, which are numbers of seconds here.
        moments: of columns of times that are stored with a zone, of which ``columns`` has what the clocks show, the
            microseconds since 1970.
        kept: which rows of the file, from 0, these are; None for all.
        unread: columns that are left out, since they hold none of numbers, words, dates and truths, with their types.
        files: of a folder of files their names and rows, in the rows' order.
    """

    path: Path
    columns: Mapping[str, Any] = field(repr=False)
    typed: bool
    where: Callable[[int], str] = field(repr=False)
    numbers: Callable[[], list[int]] = field(repr=False)
    unit: str = "row"
    notes: tuple[str, ...] = ()
    seconds: frozenset[str] = frozenset()
    moments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    kept: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    unread: Mapping[str, str] = field(default_factory=dict)
    files: tuple[tuple[str, int], ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values())))

    def places(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """The chosen rows' numbers in the file, from 0."""
        found = np.flatnonzero(chosen)
        return found if self.kept is None else self.kept[found]

    @property
    def names(self) -> list[str]:
        """The columns' names, in the file's order."""
        return list(self.columns)


def with_files(raw: RawTable, client_column: str | None) -> RawTable:
    """A folder's table with a column :data:`FILE`, where that is named as the one that says whose a row is and no file
    has it: each file is a client's, who is called as the file is, without its endings.
    """
    if client_column != FILE or FILE in raw.columns or not raw.files:
        return raw
    import pyarrow as pa

    called = [client_of_file(name) for name, _ in raw.files]
    if twice := next((name for name in called if called.count(name) > 1), None):
        raise DataError(f"{raw.path}: two files are called {quoted(twice)}, and each is to be a client's; rename one")
    names = [name for name, (_, rows) in zip(called, raw.files, strict=True) for _ in range(rows)]
    return replace(raw, columns={**raw.columns, FILE: pa.array(names)})


def client_of_file(name: str) -> str:
    """Whose a file is where each file of a folder is a client's."""
    return plain_name(_ENDINGS.sub("", name))


def check_names(path: Path, names: Sequence[str], left: Collection[int] = ()) -> None:
    """Refuse columns without a name, or with one that another has; blanks around names are no part of them.

    Args:
        path: of the table.
        names: of its columns.
        left: places of columns that are left out, from 0.

    Raises:
        DataError: names them.
    """
    plain = [plain_name(name) for name in names]
    doubled = sorted(name for name, times in Counter(plain).items() if times > 1 and name)
    if doubled:
        which = ", ".join(map(quoted, doubled))
        raise DataError(f"{path}: every column needs its own name; {which} does not have one")
    nameless = next((place for place, name in enumerate(plain) if not name and place not in left), None)
    if nameless is not None:
        raise DataError(f"{path}: every column needs its own name; column {nameless + 1} of {len(plain)} has none")


def raw_of_frame(frame: Any) -> RawTable:
    """A pandas DataFrame as a table, of which those levels of its index are columns that have names of their own.

    Raises:
        DataError: it has no rows, a column holds what no table does or cells of several kinds, or two have one name.
    """
    import pandas as pd
    import pyarrow as pa

    path = Path("the table")
    levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
    if levels:
        frame = pd.concat([frame.index.to_frame(index=False)[levels], frame.reset_index(drop=True)], axis=1)
    names = [str(name) for name in frame.columns]
    check_names(path, names)
    if not len(frame):
        raise DataError("the DataFrame has no rows")
    frame = _plain(frame.set_axis(names, axis=1))
    _check_cells(path, frame)
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException as error:
        raise DataError(f"the DataFrame cannot be read as a table: {quoted('; '.join(map(str, error.args)))}") from None
    return raw_of_arrow(path, table)


def _plain(frame: Any) -> Any:
    """A DataFrame whose columns pyarrow knows: intervals as words, periods as their first moments, nothing sparse."""
    import pandas as pd

    changed = {}
    for name, column in frame.items():
        kind = column.dtype
        if isinstance(kind, pd.CategoricalDtype) and isinstance(kind.categories.dtype, pd.IntervalDtype):
            changed[name] = column.cat.rename_categories(str)
        elif isinstance(kind, pd.IntervalDtype):
            changed[name] = column.map(str, na_action="ignore").astype(object)
        elif isinstance(kind, pd.PeriodDtype):
            changed[name] = column.dt.to_timestamp()
        elif isinstance(kind, pd.SparseDtype):
            changed[name] = column.sparse.to_dense()
    frame = frame.copy(deep=False) if changed else frame
    for name, column in changed.items():
        frame[name] = column
    return frame


def _check_cells(path: Path, frame: Any) -> None:
    """Refuse a column of numbers and truths, or of either and texts: pyarrow takes a truth among fractions for 1.

    Raises:
        DataError: names the cell.
    """
    from pandas.api.types import infer_dtype

    for name, column in frame.items():
        held = infer_dtype(column, skipna=True) if column.dtype == object else ""
        if held == "integer":
            large = [row for row, cell in enumerate(column) if _kind(cell) and not -(2**63) <= int(cell) < 2**63]
            if large:
                place, least = f"{path}, {_row_number(large[0])}", min(cell for cell in column if _kind(cell))
                raise DataError(too_large(place, name, column.iloc[large[0]], least))
        if held not in ("mixed", "mixed-integer"):
            continue
        kinds = ((row, cell, kind) for row, cell in enumerate(column) if (kind := _kind(cell)))
        first, _, usual = next(kinds, (0, None, ""))
        for row, cell, kind in kinds:
            if kind != usual:
                shown = quoted(str(cell).lower() if kind == "truth" else str(cell))
                raise DataError(
                    f"{path}, {_row_number(row)}, column {quoted(name)}: {shown} is a {kind}, and "
                    f"{_row_number(first)} has a {usual}; the cells of a column are of one kind"
                )


def too_large(place: str, name: str, number: int, least: int = 0) -> str:
    """What to say of a whole number that no column holds, or none with negative ones.

    Args:
        place: the file and the row.
        name: the column's.
        number: the one that is too large.
        least: the least of the column, if that matters.
    """
    why = "a whole number of more than 64 bits"
    if least < 0 <= number < 2**64:
        why = f"too large for a column of whole numbers that also holds negative ones ({least})"
    return f"{place}, column {quoted(name)}: {number} is {why}; take texts for names, and floats for numbers"


def _kind(cell: Any) -> str:
    """What a cell of a column of objects is; empty where it is missing or something else."""
    if isinstance(cell, bool | np.bool_):
        return "truth"
    if isinstance(cell, str):
        return "text"
    return "number" if isinstance(cell, Real) and cell == cell else ""


def raw_of_arrow(path: Path, table: Any) -> RawTable:
    """A pyarrow table as a table, without the columns that hold lists, objects or bytes, which a note says, and without
    the row numbers of pandas, which its DataFrame does not have as a column. Durations and times of day become numbers
    of seconds, whatever unit they are stored in.

    Raises:
        DataError: no column is left, or two have one name.
    """
    table = table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)])
    check_names(path, table.column_names)
    kinds = {name: table.schema.field(name).type for name in table.column_names}
    other = [name for name, kind in kinds.items() if _holds_other(kind)]
    if len(other) == len(kinds):
        raise DataError(f"{path} has no columns of numbers, words, dates or truths")
    notes = (f"left out: {', '.join(f'{quoted(name)} ({kinds[name]})' for name in other)}",) if other else ()
    columns = {plain_name(name): _plain_column(path, name, table.column(name)) for name in kinds if name not in other}
    seconds = frozenset(plain_name(name) for name in kinds if name not in other and _is_duration(kinds[name]))
    unread = {plain_name(name): str(kinds[name]) for name in other}
    zoned = [name for name in kinds if name not in other and getattr(kinds[name], "tz", None) is not None]
    moments = {plain_name(name): instants(table.column(name)) for name in zoned}
    numbers = partial(counted, len(table))
    return RawTable(
        path, columns, True, _row_number, numbers, notes=notes, seconds=seconds, moments=moments, unread=unread
    )


def instants(times: Any) -> Any:
    """Times with a zone as microseconds since 1970, a pyarrow column [N]."""
    import pyarrow as pa

    return times.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())


def _holds_other(kind: Any) -> bool:
    """Whether a column's type is none of numbers, words, dates or truths."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_nested(kind):
        return True
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_duration(kind: Any) -> bool:
    """Whether a column's type is one of durations or times of day."""
    import pyarrow as pa

    return bool(pa.types.is_duration(kind) or pa.types.is_time(kind))


def _plain_column(path: Path, name: str, column: Any) -> Any:
    """Durations and times of day as numbers of seconds, views of strings as strings, times of a zone as the clocks
    there show them; other columns as they are.

    Raises:
        DataError: a zone is not known.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):
        parts = [pa.array(part.dictionary.cast(pa.string()).take(part.indices)) for part in column.chunks]
        return pa.chunked_array(parts, pa.string())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            return pc.local_timestamp(column)
        except pa.ArrowException:
            raise DataError(
                f"{path}: the times of the column {quoted(name.strip())} are of the zone {quoted(kind.tz)}, which is "
                "not known here; store them without a zone, as the clocks there show them"
            ) from None
    if not _is_duration(kind):
        return column
    whole = column.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
    return pc.divide(whole.cast(pa.float64()), float(_PER_SECOND[kind.unit]))


def counted(rows: int) -> list[int]:
    """1, 2, … as the rows' numbers."""
    return list(range(1, rows + 1))


def _row_number(row: int) -> str:
    return f"row {row + 1}"
