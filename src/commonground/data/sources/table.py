"""What tables of texts are read with: rows of cells with their lines, and which of them are held out."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Indices
from commonground.errors import DataError
from commonground.keys import numpy_stream
from commonground.quoting import escaped

__all__ = ["held_out", "positions", "read_table"]

_TEST_SHARE = 0.25


def read_table(
    path: Path, *, delimiter: str = ",", quoted: bool = True, cut: list[int] | None = None
) -> tuple[list[str], list[list[str]], list[int]]:
    """Column names, rows, and the line each row ends on.

    Args:
        path: the file, UTF-8.
        delimiter: between cells.
        quoted: whether a cell may stand in quotation marks; otherwise they are ordinary characters.
        cut: if given, rows with another number of cells than the header are left out and their lines noted here.

    Raises:
        DataError: there is no file, it is no table, or two columns have the same name.
    """
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
            reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
            header = [name.strip() for name in next(reader, [])]
            for row in reader:
                if not row:
                    continue  # a blank line
                if len(row) != len(header):
                    if cut is not None:
                        cut.append(reader.line_num)
                        continue
                    raise DataError(
                        f"{path}, line {reader.line_num}, has {len(row)} cells; the header has {len(header)}"
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; a {path.suffix} file in UTF-8 is expected") from None
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} could not be read as a table: {error}") from None
    if not header or not rows:
        raise DataError(
            f"{path} has {len(rows)} rows below its header; a header line and at least one row are expected"
        )
    doubled = sorted(name for name, times in Counter(header).items() if times > 1)
    if doubled or "" in header:
        which = escaped(", ".join(map(repr, doubled or [""])))
        raise DataError(f"{path}: every column needs its own name; {which} does not have one")
    return header, rows, lines


def positions(values: npt.NDArray[np.str_], names: tuple[str, ...]) -> Indices:
    """The number of each value among the names."""
    sorter = np.argsort(names)
    return sorter[np.searchsorted(np.asarray(names)[sorter], values)].astype(np.int64)


def held_out(path: Path, groups: npt.NDArray[np.str_], are_clients: bool, seed: int) -> npt.NDArray[np.bool_]:
    """Test rows: a quarter of every group, at least one; keyed by the group's name, so that groups do not interfere."""
    is_test = np.zeros(len(groups), dtype=bool)
    names, group = np.unique(groups, return_inverse=True)
    for name, rows in zip(
        names, np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1]), strict=True
    ):
        if len(rows) < 2:
            if are_clients:
                raise DataError(f"{path}: client {str(name)!r} has 1 row; at least 2 are needed, to train and to test")
            continue
        shuffled = numpy_stream(seed, "table test rows", str(name)).permutation(rows)
        is_test[shuffled[: max(1, round(_TEST_SHARE * len(rows)))]] = True
    return is_test
