"""Measured cells and their files.

``cells.csv`` has a line for each method, column, variant and seed: accuracies, and how they came about. What is behind
a cell is kept beside it: ``clients/COLUMN.csv`` has each client's final accuracy, ``curves/COLUMN.csv`` the accuracy
(and, where measured, neural collapse) by round. Files are text and small, so that results can be kept in a repository.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from commonground.engine.state.files import write_atomically
from commonground.engine.state.lock import locked_file
from commonground.errors import RunError
from commonground.report.format import slug
from commonground.statistics import Values

__all__ = ["CELLS", "CellKey", "CellStore", "Curves", "Measurement"]

CELLS = "cells.csv"
CURVES = ("accuracy", "before_local", "after_local", "global_nc2", "local_nc2")
"""What a curve file may hold of a tested round: the cell's accuracy; the participants' accuracy before and after their
local training; both metrics of neural collapse (Liu et al. 2024, App. C.2)."""

UNIT = 10_000
"""Clients' accuracies are kept as whole multiples of 1/UNIT: exact for up to that many test samples of 1 %, 2 % …"""

_LATER = ("processor", "engine")
"""What cells that were measured first do not say."""

CellKey = tuple[str, str, str, int]
"""Column, method, variant, seed."""

Curves = dict[int, dict[str, float]]
"""By round, then by a name of :data:`CURVES`."""


@dataclass(frozen=True)
class Measurement:
    """One cell for one seed. Accuracies are shares, means over clients; empty where there are none.

    Attributes:
        column, method, variant, seed: which cell.
        scale: ``paper`` or ``small``.
        personal_last10, personal_final: of each client's own model; after fine-tuning for +FT.
        global_last10, global_final: of the global model.
        best: the largest of the tested rounds, of the accuracy that the cell reports.
        diverged: what happened, where training left the finite numbers; there are no accuracies then.
        rounds: tested or not.
        minutes: of the run (rows that read the same run have the same).
        device, precision, threads: what computed.
        processor: on which last bits hang; empty in cells from before it was written down.
        engine: likewise; ``batched`` rounds otherwise than the others.
        commit, version, torch: of what was run.
        weights_sha256: of the final model; equal for rows that read the same run.
        command: how to measure this cell again.
    """

    column: str
    method: str
    variant: str
    seed: int
    scale: str
    personal_last10: float | None
    personal_final: float | None
    global_last10: float | None
    global_final: float | None
    best: float | None
    diverged: str
    rounds: int
    minutes: float
    device: str
    precision: str
    threads: int
    processor: str
    engine: str
    commit: str
    version: str
    torch: str
    weights_sha256: str
    command: str

    @property
    def key(self) -> CellKey:
        """What there is one measurement of."""
        return self.column, self.method, self.variant, self.seed


class CellStore:
    """The cells of a folder. Reading a folder without any gives none; several processes may add to one.

    Args:
        folder: of an experiment's results.

    Raises:
        RunError: a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cells: dict[CellKey, Measurement] = {}
        self._curves: dict[str, dict[CellKey, Curves]] = {}
        self.read()

    def alone(self) -> AbstractContextManager[None]:
        """Keep the folder's small files from other processes; not for long, since they wait."""
        return locked_file(self.folder / ".cells.lock", wait=True)

    def read(self) -> None:
        """Take what other processes have added to the file by now.

        Raises:
            RunError: it is damaged.
        """
        self._curves.clear()
        for line in _read(self.folder / CELLS):
            cell = _measurement(line, self.folder / CELLS)
            self._cells[cell.key] = cell

    def __contains__(self, key: CellKey) -> bool:
        return key in self._cells

    def __len__(self) -> int:
        return len(self._cells)

    def get(self, key: CellKey) -> Measurement | None:
        """A cell, if it is there."""
        return self._cells.get(key)

    def all(self) -> list[Measurement]:
        """Every cell, in the order of the file."""
        return list(self._cells.values())

    def seeds(self, column: str, method: str, variant: str = "") -> list[int]:
        """The seeds a cell was measured with, ascending."""
        return sorted(seed for c, m, v, seed in self._cells if (c, m, v) == (column, method, variant))

    def clients(self, key: CellKey) -> Values:
        """Every client's final accuracy, as a share [clients]; empty if there are none.

        Raises:
            RunError: the file is damaged.
        """
        path = self._beside("clients", key[0])
        for line in _read(path):
            if _key(line, key[0], path) == key:
                try:
                    return np.array([int(value) / UNIT for value in line["accuracies"].split()])
                except (ValueError, AttributeError, KeyError):
                    raise RunError(f"'{path}' is damaged: {key[1]}, seed {key[3]} has no list of accuracies") from None
        return np.array([])

    def curves(self, column: str) -> Mapping[CellKey, Curves]:
        """The curves of all cells of a column, read once: not to be changed.

        Raises:
            RunError: the file is damaged.
        """
        if column in self._curves:
            return self._curves[column]
        path, found = self._beside("curves", column), dict[CellKey, Curves]()
        for line in _read(path):
            try:
                figures = {name: float(line[name]) for name in CURVES if line.get(name)}
                found.setdefault(_key(line, column, path), {})[int(line["round"])] = figures
            except (ValueError, KeyError):
                raise RunError(f"'{path}' is damaged: a line has no round or no numbers") from None
        self._curves[column] = found
        return found

    def add(self, cell: Measurement, clients: Iterable[float], curves: Curves) -> None:
        """Keep a cell; one of the same key is replaced.

        Args:
            cell: the measurement.
            clients: every client's final accuracy, as shares.
            curves: tested rounds.

        Raises:
            RunError: the folder cannot be written.
        """
        with self.alone():
            self.add_alone(cell, clients, curves)

    def add_alone(self, cell: Measurement, clients: Iterable[float], curves: Curves) -> None:
        """As :meth:`add`, for who has the folder alone (:meth:`alone`)."""
        self.read()
        self._cells[cell.key] = cell
        names = {"method": cell.method, "variant": cell.variant, "seed": cell.seed}
        accuracies = " ".join(str(round(value * UNIT)) for value in clients)
        path = self._beside("clients", cell.column)
        kept = [line for line in _read(path) if _key(line, cell.column, path) != cell.key]
        _write(path, ["method", "variant", "seed", "accuracies"], [*kept, {**names, "accuracies": accuracies}])
        path = self._beside("curves", cell.column)
        kept = [line for line in _read(path) if _key(line, cell.column, path) != cell.key]
        rows = [{**names, "round": r, **{n: _number(v) for n, v in at.items()}} for r, at in sorted(curves.items())]
        _write(path, ["method", "variant", "seed", "round", *CURVES], [*kept, *rows])
        # Last: a cell is there when all that belongs to it is.
        _write(self.folder / CELLS, [f.name for f in fields(Measurement)], [_line(c) for c in self._cells.values()])
        self._curves.clear()

    def _beside(self, kind: str, column: str) -> Path:
        return self.folder / kind / f"{slug(column)}.csv"


def _number(value: float | None) -> str:
    """To the last digit, so that a repeated run can be compared with it."""
    return "" if value is None or not math.isfinite(value) else repr(float(value))


def _line(cell: Measurement) -> dict[str, Any]:
    return {
        name: "" if value is None else _number(value) if isinstance(value, float) else value
        for name, value in asdict(cell).items()
    }


def _measurement(line: Mapping[str, str], path: Path) -> Measurement:
    accuracies = ("personal_last10", "personal_final", "global_last10", "global_final", "best")
    try:
        values: dict[str, Any] = {f.name: line[f.name] for f in fields(Measurement) if f.name not in _LATER}
        values |= {name: line.get(name) or "" for name in _LATER}
        values |= {name: float(line[name]) if line[name] else None for name in accuracies}
        values |= {name: int(line[name]) for name in ("seed", "rounds", "threads")}
        values["minutes"] = float(line["minutes"])
    except (KeyError, ValueError, TypeError):
        raise RunError(f"'{path}' is damaged: the line of {line.get('method')}, {line.get('column')} is none") from None
    if any(not 0 <= values[name] <= 1 for name in accuracies if values[name] is not None):
        raise RunError(f"'{path}' is damaged: {values['method']}, {values['column']} has an accuracy outside of 0 to 1")
    return Measurement(**values)


def _key(line: Mapping[str, str], column: str, path: Path) -> CellKey:
    try:
        return column, line["method"], line["variant"], int(line["seed"])
    except (KeyError, ValueError, TypeError):
        raise RunError(f"'{path}' is damaged: a line does not say whose it is") from None


def _read(path: Path) -> list[dict[str, str]]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"'{path}' is not readable: {error}") from None
    return list(csv.DictReader(io.StringIO(text)))


def _write(path: Path, names: Iterable[str], rows: list[Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()  # not as for spreadsheets, whose cells are cut: what is written is read again
        writer = csv.DictWriter(text, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(path, text.getvalue())
    except OSError as error:
        raise RunError(f"'{path}' cannot be written: {error.strerror}") from None
