"""What each change of the setting does to a cell, paired by seed."""

from __future__ import annotations

from typing import Any

from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.readings import Which, precisions, reported
from commonground.papers.tables.table import PaperColumn, PaperTable, Row
from commonground.papers.tables.variants import VARIANTS, Variant
from commonground.statistics import student_interval
from commonground.table import Column, Table

__all__ = ["FAR", "differences_table", "far_cells"]

FAR = 2.0
"""Percentage points from the printed value beyond which a cell's difference is looked into."""

TITLE = "What moves a cell"
OWN_BODY = "tested by participants as they end a round, on the body they trained, not on the average they began with"
READINGS: dict[str, tuple[str, Which]] = {
    "the last round, not the mean of ten": ("every-round", "final"),
    "the best tested round, not the mean of ten": ("every-round", "best"),
    OWN_BODY: ("", "own-body"),
}
"""What is read otherwise, from the cells of which variant."""


def differences_table(table: PaperTable, store: CellStore) -> Table:
    """A line per cell and change: the printed value, ours, and by how much the change moves it, in points.

    Changes of the setting are runs of their own, paired with the paper's setting by seed; readings take another figure
    from the same runs.
    """
    rows = []
    for column in table.columns:
        for row in table.rows:
            rows += _readings(table, store, column, row)
            rows += _other_ways(table, store, column, row)
            rows += _switches(table, store, column, row)
    names = ("column", "method", "paper", "measured", "change", "moves it by", "95 %", "seeds")
    return Table(TITLE, tuple(Column(name, name in ("paper", "measured", "moves it by")) for name in names), rows)


def far_cells(table: PaperTable, store: CellStore) -> list[tuple[PaperColumn, Row, float]]:
    """Cells whose mean is more than :data:`FAR` points from the printed value, with the difference."""
    found = []
    for column in table.columns:
        for row in table.rows:
            values = _values(store, column, row, "")
            paper = table.paper(row, column)
            if values and paper is not None:
                off = sum(values.values()) / len(values) - paper
                if abs(off) > FAR:
                    found.append((column, row, off))
    return found


def _switches(table: PaperTable, store: CellStore, column: PaperColumn, row: Row) -> list[dict[str, Any]]:
    base = _values(store, column, row, "")
    found = []
    for name, one in VARIANTS.items():
        changed = _values(store, column, row, name)
        seeds = sorted(s for s in base.keys() & changed.keys() if _one_thing(store, column, row, one, s))
        if seeds:
            found.append(
                _line(
                    table,
                    column,
                    row,
                    one.said_of(row.algorithm),
                    [base[s] for s in seeds],
                    [changed[s] for s in seeds],
                )
            )
    return found


def _one_thing(store: CellStore, column: PaperColumn, row: Row, one: Variant, seed: int) -> bool:
    """Whether nothing but what the variant changes differs between two cells: nor how products were computed."""
    base, changed = (store.get((column.label, row.name, name, seed)) for name in ("", one.name))
    wanted = "fp32" if "precision" in one.settings else None if changed is None else changed.precision
    return base is not None and base.precision == wanted


def _readings(table: PaperTable, store: CellStore, column: PaperColumn, row: Row) -> list[dict[str, Any]]:
    """What other figures of the same runs say."""
    found = []
    for what, (name, which) in READINGS.items():
        base, other = _values(store, column, row, name), _values(store, column, row, name, which)
        if seeds := sorted(base.keys() & other.keys()):
            found.append(_line(table, column, row, what, [base[s] for s in seeds], [other[s] for s in seeds]))
    return found


def _other_ways(table: PaperTable, store: CellStore, column: PaperColumn, row: Row) -> list[dict[str, Any]]:
    """What other rows say that measure the same printed value in another way."""
    found = []
    base = _values(store, column, row, "")
    for other in table.rows:
        ours = _values(store, column, other, "") if other.printed == row.name else {}
        names = row.name, other.name
        seeds = sorted(s for s in base.keys() & ours.keys() if len(precisions(store, column, names, s)) == 1)
        if seeds:
            what = f"measured as {other.name!r}"
            found.append(_line(table, column, row, what, [base[s] for s in seeds], [ours[s] for s in seeds]))
    return found


def _line(
    table: PaperTable, column: PaperColumn, row: Row, what: str, base: list[float], changed: list[float]
) -> dict[str, Any]:
    paper = table.paper(row, column)
    moved = [b - a for a, b in zip(base, changed, strict=True)]
    middle, low, high = (float(v) for v in student_interval(moved))
    return {
        "column": column.label,
        "method": row.name,
        "paper": None if paper is None else round(paper, 2),
        "measured": round(sum(base) / len(base), 2),
        "change": what,
        "moves it by": round(middle, 2),
        "95 %": f"{low:.2f} to {high:.2f}" if len(moved) > 1 else "one seed",
        "seeds": len(moved),
    }


def _values(store: CellStore, column: PaperColumn, row: Row, variant: str, which: Which = "last10") -> dict[int, float]:
    """By seed, in percent."""
    return {seed: 100 * value for seed, value in reported(store, column, row, variant, which).items()}
