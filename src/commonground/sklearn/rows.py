"""Whose rows are whose: from what a user says of the clients to numbers, and to a federated data set."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from commonground.data import FederatedDataset, Preprocess
from commonground.data.arrays import offsets_of
from commonground.errors import DataError

__all__ = ["InputError", "client_names", "dealt", "standardised", "without_clients"]

Array = npt.NDArray[Any]


class InputError(DataError, ValueError):
    """Rows or clients that cannot be used; a ValueError as well, which is what scikit-learn's callers expect."""


def client_names(groups: Any, rows: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The clients' names as text, sorted, and the number of each row's client [rows].

    A client is known by its text, so that 7, 7.0 and "7" are the same one, and a moment of any resolution is.

    Args:
        groups: [rows] labels, numbers or texts.
        rows: how many rows there are.

    Raises:
        InputError: another number of labels than of rows, or a row without a client.
    """
    # Of a list of texts and nan numpy would make texts, and one more client.
    labels = np.asarray(groups, dtype=object if isinstance(groups, list | tuple) else None)
    if labels.shape not in ((rows,), (rows, 1)):
        raise InputError(f"groups has the shape {labels.shape}, and there are {rows} rows; each needs one client")
    codes, distinct = pd.factorize(labels.reshape(rows))
    for row in np.flatnonzero(codes < 0)[:1]:
        raise InputError(f"row {row} has no client; every row needs one")
    # Of moments in nanoseconds a list of Python's would hold whole numbers.
    each = list(distinct) if labels.dtype.kind == "M" else distinct.tolist()
    names, number = np.unique([_text(label) for label in each], return_inverse=True)
    return names.tolist(), number[codes].astype(np.int64)


def _text(label: object) -> str:
    if isinstance(label, bytes):
        return label.decode("utf-8", "backslashreplace")
    if isinstance(label, datetime | np.datetime64):
        return str(pd.Timestamp(label))
    return str(int(label)) if isinstance(label, float | np.floating) and label.is_integer() else str(label)


def without_clients(X: Any, column: str | int) -> tuple[Any, Any]:
    """A table without its client column, and that column.

    Args:
        X: a DataFrame or an array [rows, columns].
        column: the name, or of an array the number.

    Raises:
        InputError: there is no such column.
    """
    if hasattr(X, "columns") and hasattr(X, "drop"):
        if column not in list(X.columns):
            raise InputError(f"there is no client column {column!r}; the columns are {', '.join(map(str, X.columns))}")
        rest = X.drop(columns=[column]) if isinstance(X, pd.DataFrame) else X.drop(column)
        return rest, X[column]
    table = np.asarray(X)
    if table.ndim != 2 or not isinstance(column, int | np.integer) or not -table.shape[1] <= column < table.shape[1]:
        raise InputError(
            f"the client column {column!r} is no column of an array of shape {table.shape}; give its number, or a "
            "DataFrame and its name"
        )
    return np.delete(table, column, axis=1), table[:, column]


def dealt(
    X: Array, y: Array, names: Sequence[str], owner: npt.NDArray[np.int64], outputs: int, **about: Any
) -> FederatedDataset:
    """A federated data set whose clients are tested on the rows they train on: an estimator is given no others.

    Args:
        X: [rows, …].
        y: targets in the task's stored form.
        names: of the clients.
        owner: [rows], each row's client.
        outputs: classes or targets.
        about: further fields of :class:`~commonground.data.FederatedDataset`.
    """
    order = np.argsort(owner, kind="stable")
    offsets = offsets_of(np.bincount(owner, minlength=len(names)))
    return FederatedDataset(
        name="arrays",
        x_train=X,
        y_train=y,
        x_test=X,
        y_test=y,
        classes=outputs,
        train_index=order,
        train_offsets=offsets,
        test_index=order,
        test_offsets=offsets,
        client_names=tuple(names),
        **about,
    )


def standardised(X: Array) -> Preprocess:
    """Mean 0 and deviation 1 of every column (last axis) over all rows; a constant column becomes 0."""
    axes = tuple(range(X.ndim - 1))
    mean, std = X.mean(axes, dtype=np.float64), X.std(axes, dtype=np.float64)
    # A deviation that is rounding alone would blow rounding up.
    std = np.where(std > 1e-12 * np.abs(mean), std, 1.0)
    return Preprocess(mean=tuple(mean.tolist()), std=tuple(std.tolist()))
