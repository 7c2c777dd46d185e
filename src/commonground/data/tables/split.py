"""Whose rows are whose, and which of them are test rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.counted import counted
from commonground.data.arrays import Related, held_count
from commonground.data.tables.cells import Cells
from commonground.data.tables.options import TableOptions
from commonground.errors import DataError
from commonground.keys import numpy_stream
from commonground.quoting import quoted

__all__ = ["FEW", "Owners", "few_rows", "given_tests", "held_out_tests", "related_tests"]

Codes = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]

FEW = "(few rows)"
"""The client into which those with few rows are pooled."""


@dataclass(frozen=True, eq=False)
class Owners:
    """Who each row belongs to.

    Attributes:
        names: of the clients; one without a name where there is no client column.
        codes: the client of each row [N]; −1 for rows that are left out.
        few: what became of clients with few rows, for the schema.
    """

    names: list[str]
    codes: Codes
    few: dict[str, Any] = field(default_factory=dict)

    def about_few(self) -> dict[str, Any]:
        """What became of clients with few rows, by name, for whoever is to find their model; empty if nothing did."""
        became = self.few.get("clients") and self.few["how"] != "keep"
        return {"few_clients": {name: self.few[name] for name in ("how", "clients")}} if became else {}

    def parts(self) -> Iterator[tuple[str, Codes]]:
        """Each client's name and rows, in the table's order."""
        yield from _groups(self.names, self.codes)


def _groups(names: Sequence[str], codes: Codes) -> Iterator[tuple[str, Codes]]:
    order = np.argsort(codes, kind="stable")
    order = order[np.searchsorted(codes[order], 0) :]
    sizes = np.bincount(codes[codes >= 0], minlength=len(names))
    for name, rows in zip(names, np.split(order, np.cumsum(sizes)[:-1]), strict=True):
        if len(rows):
            yield name, rows


def few_rows(path: Path, owners: Owners, options: TableOptions, is_test: Marks | None) -> Owners:
    """Pool or leave out the clients with fewer rows than asked for, as the options say.

    Args:
        path: for messages.
        owners: of the rows.
        options: say how, and what is few.
        is_test: which rows are test rows, if the table says so: a client without either kind has too few as well.

    Raises:
        DataError: a client has one row and nobody said what becomes of it, or no client is left.
    """
    inside = owners.codes[owners.codes >= 0]
    sizes = np.bincount(inside, minlength=len(owners.names))
    few = (sizes < options.min_rows) & (sizes > 0)
    if is_test is not None:
        tests = np.bincount(inside[is_test[owners.codes >= 0]], minlength=len(owners.names))
        few |= (sizes > 0) & ((tests == 0) | (tests == sizes))
    if options.few_rows == "keep" and is_test is None and (sizes == 1).any():
        name = owners.names[int(np.argmax(sizes == 1))]
        raise DataError(
            f"{path}: client {quoted(name)} has 1 row; at least 2 are needed, to train and to test "
            f"({counted(int((sizes == 1).sum()), 'such client')}; --few-rows drop, pool or shared says what "
            "becomes of them)"
        )
    one_sided = int((few & (sizes >= options.min_rows)).sum())
    said = {
        "how": options.few_rows,
        "min_rows": options.min_rows,
        "clients": sorted(owners.names[i] for i in np.flatnonzero(few)),
        "rows": int(sizes[few].sum()),
        **({"one_sided": one_sided} if one_sided else {}),
    }
    if not few.any() or options.few_rows == "keep":
        return Owners(owners.names, owners.codes, said)
    if options.few_rows == "pool":
        return _pooled(path, owners, few, options, said)
    if not (sizes[~few] > 0).any():
        lacks = f"{options.min_rows} rows" if (sizes[few] < options.min_rows).all() else "both training and test rows"
        smaller = "a smaller --min-rows or " if options.min_rows > 2 else ""
        served = "; a finished run's shared model serves all (predict --global)" if options.few_rows == "shared" else ""
        raise DataError(f"{path}: no client has {lacks}; to train, take {smaller}--few-rows pool{served}")
    return Owners(owners.names, _recoded(owners, few, -1), said)


def _pooled(path: Path, owners: Owners, few: Marks, options: TableOptions, said: dict[str, Any]) -> Owners:
    """Those with few rows as one client.

    Raises:
        DataError: they have a single row together, or somebody has this client's name.
    """
    if FEW in owners.names:
        raise DataError(f"{path}: a client is called {FEW}, which is the name of those that are pooled")
    if said["rows"] == 1:
        raise DataError(
            f"{path}: the clients with fewer than {options.min_rows} rows have 1 row in all; 2 are needed: raise "
            "--min-rows, so that more of them train as one, or take --few-rows drop"
        )
    return Owners([*owners.names, FEW], _recoded(owners, few, len(owners.names)), said)


def _recoded(owners: Owners, few: Marks, place: int) -> Codes:
    """The client of each row, ``place`` for those with few; rows that were left out before stay so."""
    return np.append(np.where(few, place, np.arange(len(few))), -1)[owners.codes]


def given_tests(path: Path, column: str, cells: Cells, where: Callable[[int], str]) -> Marks:
    """Test rows, as a column of ``train`` and ``test`` says."""
    small = [word.lower() for word in cells.words]
    bad = np.array([word not in ("train", "test") for word in small] + [True])[cells.codes]
    if bad.any():
        row = int(np.argmax(bad))
        word = cells.words[cells.codes[row]] if cells.codes[row] >= 0 else ""
        raise DataError(f"{path}, {where(row)}, column {quoted(column)}: {quoted(word)} is neither 'train' nor 'test'")
    return np.array([word == "test" for word in small])[cells.codes]


def held_out_tests(parts: Iterator[tuple[str, Codes]], rows: int, share: float, seed: int) -> Marks:
    """A share of every part's rows, at least one unless it has no other; keyed by the part's name, so that parts do not
    interfere.
    """
    is_test = np.zeros(rows, dtype=bool)
    for name, index in parts:
        if len(index) > 1:
            shuffled = numpy_stream(seed, "table test rows", name).permutation(index)
            is_test[shuffled[: held_count(len(index), share)]] = True
    return is_test


def related_tests(path: Path, parts: Iterator[tuple[str, Codes]], related: Related, share: float, seed: int) -> Marks:
    """The last rows of every part by time, or whole groups of them.

    Raises:
        DataError: a part has rows of one group only.
    """
    is_test = np.zeros(len(related.values), dtype=bool)
    for name, index in parts:
        # Nobody's rows are drawn as those of a regression always were, so that old runs find their test rows.
        rng = numpy_stream(seed, "table test groups", name or "any")
        is_test[index] = related.held(index, held_count(len(index), share), rng)
        if related.by == "group" and not is_test[index].any():
            whose = f"client {quoted(name)}" if name else "the table"
            raise DataError(f"{path}: {whose} has rows of one group only, so that none can be held out")
    return is_test
