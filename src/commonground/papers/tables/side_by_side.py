"""A printed table once more in its own form, methods by columns, with what was measured beside every printed value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commonground.papers.claims import FEWEST
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.readings import Which, reported
from commonground.papers.tables.table import PaperColumn, PaperTable, Row
from commonground.report.format import FormattedFloat
from commonground.table import Column, Table

__all__ = ["about_readings", "side_by_side"]

READINGS: Mapping[Which, str] = {"last10": "ours", "own-body": "on own body"}


def side_by_side(title: str, table: PaperTable, store: CellStore) -> Table:
    """Methods by columns: the printed value and the mean over seeds, in percent.

    Where a table is judged a second time on bodies just trained (``own_bodies``), that reading stands beside. Rows and
    columns of which nothing is measured are left out. A mean over too few seeds to judge says how many.

    Args:
        title: of what is returned.
        table: at the scale of the cells.
        store: with the cells.
    """
    readings: tuple[Which, ...] = ("last10", "own-body") if table.own_bodies else ("last10",)
    columns = [c for c in table.columns if any(reported(store, c, row) for row in table.rows)]
    rows = []
    for row in table.rows:
        ours = {f"{c.label} {READINGS[which]}": _mean(store, c, row, which) for c in columns for which in readings}
        if any(mean is not None for mean in ours.values()):
            printed: dict[str, Any] = {f"{c.label} printed": table.paper(row, c) for c in columns}
            rows.append({"method": row.name, **printed, **ours})
    of_column = ["printed", *(READINGS[which] for which in readings)]
    names = [f"{column.label} {what}" for column in columns for what in of_column]
    return Table(title, (Column("method"), *(Column(name, True) for name in names)), rows)


def about_readings(table: PaperTable) -> str:
    """What stands beside the printed values."""
    own = " On own body: clients are tested as they end a round, on the body they trained." if table.own_bodies else ""
    return f"Percent; ours are means over seeds.{own}"


def _mean(store: CellStore, column: PaperColumn, row: Row, which: Which) -> FormattedFloat | None:
    values = list(reported(store, column, row, which=which).values())
    if not values:
        return None
    mean, seeds = 100 * sum(values) / len(values), len(values)
    few = f" ({seeds} seed{'s' if seeds > 1 else ''})" if seeds < FEWEST else ""
    return FormattedFloat(mean, f"{mean:.1f}{few}")
