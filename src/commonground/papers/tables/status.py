"""Which cells are there, which are missing, and how long those would take here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from commonground.counted import in_ranges
from commonground.errors import RunError
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.fill import Work, work_for
from commonground.papers.tables.folder import table_in
from commonground.papers.tables.table import CellRun, PaperTable
from commonground.papers.tables.variants import PAPER
from commonground.table import Column, Table

__all__ = ["hours_left", "missing_work", "status_lines", "status_table", "tables_in"]


def tables_in(folder: Path) -> list[Path]:
    """The folders of tables: this one, or those directly below it that hold one.

    Raises:
        RunError: there is none.
    """
    if not folder.is_dir():
        raise RunError(f"'{folder}' is not a folder")
    if (folder / "reproduction.json").is_file():
        return [folder]
    below = sorted(file.parent for file in folder.glob("*/cells.csv") if (file.parent / "reproduction.json").is_file())
    if not below:
        raise RunError(f"'{folder}' holds no table of cells; 'commonground reproduce TABLE --out FOLDER' begins one")
    return below


def status_lines(folder: Path) -> tuple[Table, list[str]]:
    """The cells of a table's folder, and what is missing, in sentences.

    Raises:
        RunError: the folder holds no table.
    """
    _, table, about = table_in(folder)
    store = CellStore(folder)
    lines = []
    changed = sorted({cell.variant for cell in store.all()} - {""})
    if changed:
        lines.append(f"Measured as well with one thing changed: {', '.join(changed)}.")
    for seeds in sorted({1, 3, table.seeds}):
        missing = missing_work(table, store, seeds)
        device, precision = _usual(store) or (str(about.get("device", "cpu")), str(about.get("precision", "fp32")))
        hours = hours_left(table, store, seeds, device, precision) if missing else 0.0
        how_long = (
            "for how long, nobody knows yet"
            if hours is None
            else f"about {hours:.1f} hours on a quiet {device} in {precision}"
        )
        lines.append(
            f"For {seeds} seed{'s' if seeds > 1 else ''} of everything {len(missing)} runs are missing"
            + (f": {how_long}." if missing else ".")
        )
    return status_table(table, store), lines


def _usual(store: CellStore) -> tuple[str, str] | None:
    """Device and precision of most cells of the paper's setting."""
    kinds = Counter((cell.device, cell.precision) for cell in store.all() if not cell.variant)
    return kinds.most_common(1)[0][0] if kinds else None


def status_table(table: PaperTable, store: CellStore) -> Table:
    """A row per method and a column per partition: the seeds that are there of those the paper has."""
    heads = [Column("method"), *(Column(column.label, numeric=True) for column in table.columns)]
    rows = [
        {
            "method": row.name,
            **{c.label: _seeds(store.seeds(c.label, row.name), table.seeds) for c in table.columns},
        }
        for row in table.rows
    ]
    there = sum(
        len(set(store.seeds(c.label, r.name)) & set(range(table.seeds))) for c in table.columns for r in table.rows
    )
    whole = len(table.columns) * len(table.rows) * table.seeds
    return Table(f"{table.name}: {there} of {whole} cells, by seed (of 0–{table.seeds - 1})", tuple(heads), rows)


def _seeds(seeds: Sequence[int], of: int) -> str:
    own, others = ([seed for seed in seeds if (seed < of) == inside] for inside in (True, False))
    also = [f"also {in_ranges(others)}"] if others else []
    return "; ".join([in_ranges(own) or "–", *also])


def missing_work(table: PaperTable, store: CellStore, seeds: int) -> list[Work]:
    """Runs of the paper's setting whose cells are not all there."""
    work = work_for(table, table.columns, table.rows, [PAPER], range(seeds), {})
    return [one for one in work if any(key not in store for key in one.cells())]


def hours_left(
    table: PaperTable, store: CellStore, seeds: int, device: str = "cpu", precision: str = "fp32"
) -> float | None:
    """Hours that the missing runs would take on a quiet machine, from the minutes of those measured on such a device so
    precisely. Beside other work a run takes longer, never shorter: of runs alike the fastest counts.

    A run takes what runs of its method took in its column; else what its column's runs took, else all, by rounds, local
    epochs and samples.

    Returns:
        None where nothing was measured like that yet.
    """
    arms = {(column.label, row.name): (column, row) for column in table.columns for row in table.rows}
    runs = {  # rows that share a run count once
        cell.weights_sha256 or cell.key: cell
        for cell in store.all()
        if (cell.device, cell.precision, cell.variant) == (device, precision, "") and (cell.column, cell.method) in arms
    }
    fastest: dict[tuple[str, str], float] = {}
    for cell in runs.values():
        kind = (cell.column, cell.method)
        fastest[kind] = min(cell.minutes, fastest.get(kind, math.inf))
    if not fastest:
        return None
    rates = {kind: minutes / _size(table.arm(*arms[kind])) for kind, minutes in fastest.items()}
    return sum(_minutes(one, fastest, rates) for one in missing_work(table, store, seeds)) / 60


def _minutes(one: Work, fastest: Mapping[tuple[str, str], float], rates: Mapping[tuple[str, str], float]) -> float:
    """Of a run, by the fastest alike or by the minutes per size of others."""
    column = one.arm.column.label
    own = [fastest[kind] for arm in one.arms if (kind := (column, arm.row.name)) in fastest]
    if own:
        return min(own)
    beside = [rate for (there, _), rate in rates.items() if there == column]
    return _size(one.arm) * median(beside or rates.values())


def _size(arm: CellRun) -> float:
    """Passes of whole models over the training data in a run, times the data; those of heads alone cost little."""
    settings = arm.settings
    share = settings["participation"] * settings["rounds"] * settings.get("local_epochs", 1)
    return float(share * min(1.0, settings.get("train_samples", 1e9) * settings.get("clients", 100) / 50_000))
