"""Your own table: numbers in columns, what is to be predicted, and who each row belongs to."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Array, Indices, Preprocess
from commonground.data.sources.base import Source, sorted_names
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream
from commonground.tasks import Classification, MultiLabel, Regression, Task, make_task

__all__ = ["cells_of", "given_split", "held_out", "load_table", "positions", "read_table"]

_MISSING = {"", "na", "n/a", "nan", "nat", "null", "none", "?"}
_TEST_SHARE = 0.25
MOST_NUMBERS = 200  # more different numbers in a label column are rather a quantity than classes


def load_table(
    path: Path, *, label: str = "label", client_column: str | None = None, seed: int = 0, task: str | None = None
) -> Source:
    """Samples from a .csv file with a header line.

    Every column but the label, the client column and ``split`` is a feature and must hold numbers. Features are
    stored as they are, in float32, and standardised by the preprocessing with the training rows' mean and deviation,
    all clients' rows together; so are the targets of a regression (:class:`~commonground.tasks.Regression`).
    A column ``split`` of ``train`` and ``test`` says which rows are test rows; without it a quarter of each client's
    rows (of each class's rows when there is no client column) is held out at random.

    Args:
        path: the file, UTF-8.
        label: the label's column; its values may be any text and become classes in sorted order. For a regression the
            target's, and for several labels theirs, separated by commas.
        client_column: the column that says whom a row belongs to, kept in the source's columns.
        seed: keys the hold-out.
        task: ``classification``, ``regression`` or ``multilabel``; by default classification, unless the label is
            plainly a quantity.

    Raises:
        ConfigError: tables have no such task.
        DataError: the file is missing or no such table, a cell is missing or no number (line and column named), or
            nobody said whether a column of many different numbers is to be predicted as such.
    """
    header, rows, lines = read_table(path)
    labels = [label] if label in header else [name.strip() for name in label.split(",")]
    for column in filter(None, (*labels, client_column)):
        if column not in header:
            raise DataError(f"{path} has no column {column!r}; its columns are: {', '.join(header)}")
    if client_column in labels:
        raise DataError(f"{path}: the column {client_column!r} cannot be both the label and the client column")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    owners = None if client_column is None else cells_of(path, client_column, columns[client_column], lines)
    features = [name for name in header if name not in (*labels, client_column, "split")]
    if not features:
        raise DataError(f"{path} has no feature columns; at least one column of numbers beside the label is needed")
    feature = "a feature column must be numeric (a client column is named by the partition, column:NAME)"
    x = _numbers(path, features, columns, lines, feature)
    strata, y, class_names, learnt = _targets(path, labels, task, columns, lines)
    if "split" in header:
        is_test = given_split(path, columns["split"], lines)
    else:
        is_test = held_out(path, strata if owners is None else owners, owners is not None, seed)
    if is_test.all() or not is_test.any():
        raise DataError(
            f"{path} has {(~is_test).sum()} training rows and {is_test.sum()} test rows; both need at least 1"
        )
    mean, std = x[~is_test].mean(axis=0, dtype=np.float64), x[~is_test].std(axis=0, dtype=np.float64)
    return Source(
        name=path.name,
        x_train=x[~is_test],
        y_train=y[~is_test],
        x_test=x[is_test],
        y_test=y[is_test],
        classes=len(class_names),
        class_names=class_names,
        task=learnt.standardised(y[~is_test]) if isinstance(learnt, Regression) else learnt,
        preprocess=Preprocess(mean=tuple(mean.tolist()), std=tuple(np.where(std > 0, std, 1.0).tolist())),
        train_columns={} if client_column is None or owners is None else {client_column: owners[~is_test]},
        test_columns={} if client_column is None or owners is None else {client_column: owners[is_test]},
    )


def _targets(
    path: Path, labels: Sequence[str], task: str | None, columns: dict[str, tuple[str, ...]], lines: Sequence[int]
) -> tuple[npt.NDArray[np.str_], Array, tuple[str, ...], Task]:
    """What rows are held out evenly over [N], targets, the outputs' names, and the task."""
    chosen = make_task(task or ("classification" if len(labels) == 1 else "multilabel"))
    if isinstance(chosen, Regression | MultiLabel):
        y = _numbers(path, labels, columns, lines, "a target of this task must be numeric")
        return np.full(len(lines), "any", dtype=np.str_), chosen.targets(y, labels[0]), tuple(labels), chosen
    if not isinstance(chosen, Classification):
        raise ConfigError(f"a table is for classification, regression or multilabel, not for {chosen.name}")
    if len(labels) > 1:
        raise ConfigError(f"a classification has one label column, and {len(labels)} are named; take --task multilabel")
    cells = cells_of(path, labels[0], columns[labels[0]], lines)
    names = sorted_names(cells)
    if task is None and _is_quantity(names, len(cells)):
        raise DataError(
            f"{path}: the column {labels[0]!r} holds {len(names):,} different numbers; say --task regression to "
            "predict a number, or --task classification to take each of them as a class"
        )
    return cells, positions(cells, names), names, chosen


def _is_quantity(names: Sequence[str], rows: int) -> bool:
    """Whether a column's values are rather measured than named: many numbers, or fractions."""
    if not all(map(_is_number, names)):
        return False
    fractions = any(float(name) != round(float(name)) for name in names if math.isfinite(float(name)))
    return len(names) > MOST_NUMBERS or (fractions and len(names) > 0.2 * rows)


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
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled or "" in header:
        raise DataError(
            f"{path}: every column needs its own name; {', '.join(map(repr, doubled or ['']))} does not have one"
        )
    return header, rows, lines


def cells_of(path: Path, column: str, cells: Sequence[str], lines: Sequence[int]) -> npt.NDArray[np.str_]:
    """A column's cells without surrounding blanks; an empty one is refused."""
    values = [cell.strip() for cell in cells]
    for value, line in zip(values, lines, strict=True):
        if value == "":
            raise DataError(f"{path}, line {line}, column {column!r}: the cell is empty")
    return np.array(values, dtype=np.str_)


def _numbers(
    path: Path, names: Sequence[str], columns: dict[str, tuple[str, ...]], lines: Sequence[int], what: str
) -> Array:
    """Columns as float32 [N, columns]; one of anything else is refused, with ``what`` it should be."""
    other = [
        name for name in names if not any(map(_is_number, columns[name])) and not all(map(_is_missing, columns[name]))
    ]
    if other:
        raise DataError(
            f"{path}: {', '.join(map(repr, other))} {'holds' if len(other) == 1 else 'hold'} no numbers; {what}"
        )
    x = np.empty((len(lines), len(names)), dtype=np.float32)
    for number, name in enumerate(names):
        try:
            with np.errstate(over="ignore"):
                x[:, number] = np.array(columns[name], dtype=np.float64)
        except ValueError:
            x[:, number] = np.nan  # some cell is no number: the check below finds it
        if not np.isfinite(x[:, number]).all():
            raise DataError(_bad_cell(path, name, columns[name], lines))
    return x


def _bad_cell(path: Path, name: str, cells: Sequence[str], lines: Sequence[int]) -> str:
    largest = float(np.finfo(np.float32).max)
    for cell, line in zip(cells, lines, strict=True):
        where = f"{path}, line {line}, column {name!r}:"
        if _is_missing(cell):
            return f"{where} the value is missing ({cell.strip()!r}); a number is expected."
        if not (_is_number(cell) and abs(float(cell)) <= largest):
            return f"{where} {cell.strip()!r} is not a finite number of single precision."
    return f"{path}, column {name!r}: a value is not a plain number."


def _is_missing(cell: str) -> bool:
    return cell.strip().lower() in _MISSING


def _is_number(cell: str) -> bool:
    try:
        return not _is_missing(cell) and float(cell) is not None
    except ValueError:
        return False


def positions(values: npt.NDArray[np.str_], names: tuple[str, ...]) -> Indices:
    """The number of each value among the names."""
    sorter = np.argsort(names)
    return sorter[np.searchsorted(np.asarray(names)[sorter], values)].astype(np.int64)


def given_split(path: Path, cells: Sequence[str], lines: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Test rows, as a column ``split`` of ``train`` and ``test`` says."""
    values = [cell.strip().lower() for cell in cells]
    for value, line in zip(values, lines, strict=True):
        if value not in ("train", "test"):
            raise DataError(f"{path}, line {line}, column 'split': {value!r} is neither 'train' nor 'test'")
    return np.array([value == "test" for value in values])


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
