"""Cells measured again: drawn by a seed that nobody chose, trained by their own settings, compared digit by digit."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from commonground.errors import RunError
from commonground.keys import numpy_stream
from commonground.literals import assigned
from commonground.papers.request import Request
from commonground.papers.tables.cells import CellStore, Measurement
from commonground.papers.tables.fill import Work, fill, work_for
from commonground.papers.tables.folder import table_in
from commonground.papers.tables.readings import reported
from commonground.papers.tables.rerun_file import ALIKE, OTHER, OTHER_WEIGHTS, Origin, read_origins, write_origin
from commonground.papers.tables.table import PaperTable, Row
from commonground.papers.tables.variants import variant
from commonground.table import Column, Table

__all__ = ["Again", "draw_runs", "measured_again", "rerun", "rerun_table"]

FIGURES = ("personal_last10", "personal_final", "global_last10", "global_final", "best")
CONDITIONS = ("processor", "engine", "threads", "torch")
"""On what last digits hang beside the settings."""


@dataclass(frozen=True)
class Again:
    """A cell as it was kept, and as it was measured now.

    Attributes:
        before, now: both measurements.
        kept, measured: what is reported of each, as a share; None where training diverged.
        over_seeds: the standard deviation of what is kept over the cell's seeds; None where there is one.
    """

    before: Measurement
    now: Measurement
    kept: float | None
    measured: float | None
    over_seeds: float | None = None

    @property
    def same(self) -> bool:
        """Whether every accuracy and the final weights are the same to the last digit."""
        return self.same_accuracies and self.before.weights_sha256 == self.now.weights_sha256

    @property
    def same_accuracies(self) -> bool:
        """Whether every accuracy is the same to the last digit, and whether training diverged."""
        figures = all(getattr(self.before, name) == getattr(self.now, name) for name in (*FIGURES, "diverged"))
        return figures and self.kept == self.measured

    @property
    def off(self) -> float | None:
        """By how much what is reported differs; None where there is no number to compare."""
        return None if self.kept is None or self.measured is None else self.measured - self.kept

    @property
    def changed(self) -> list[str]:
        """What else computed than before, in words."""
        found = []
        for name in CONDITIONS:
            before, now = getattr(self.before, name), getattr(self.now, name)
            if before != now:
                found.append(f"{name} {now} instead of {before or 'one that was not written down'}")
        return found


def rerun(folder: Path, request: Request, count: int) -> tuple[list[Again], list[str]]:
    """Draw runs of a table's folder and measure them again.

    Args:
        folder: of the table.
        request: its folder keeps what is measured now, so that the same command goes on; its seed decides which runs
            are drawn, its columns, methods and variants among which, its minutes how long they may take in all.
        count: how many runs; several cells may be read from one.

    Returns:
        Cells, and remarks in sentences.

    Raises:
        ConfigError: a column, method or variant is unknown, or the cells' device is not here.
        RunError: the folder holds no such cells, or the request's holds another table's.
    """
    chosen, table, about = table_in(folder)
    if request.folder.absolute() == folder.absolute():
        raise RunError(f"'{folder}' has these cells already; name another --out for those that are measured again")
    asked = replace(request, scale=about["scale"], overrides=_settings(about))
    store = CellStore(folder)
    drawn, notes = draw_runs(table, store, asked, count)
    again = CellStore(request.folder)
    with again.alone():  # first of all, so that a folder says whose cells it holds however this ends
        again.read()
        _check_alike(again, Origin.of(about))
        write_origin(request.folder, Origin.of(about))
    going, found = request.going, list[Again]()
    for work, kept in drawn:
        here = replace(asked, device=chosen.device(kept[0].device), precision=kept[0].precision)
        said, done = fill(table, [work], CellStore(request.folder), here, going)
        notes += said
        keys = {cell.key for cell in kept}
        found += [one for one in _compared(work, store, CellStore(request.folder)) if one.before.key in keys]
        if not done:
            notes.append("Time ran out before all that was drawn was measured; the same command goes on.")
            break
    return found, notes


def draw_runs(
    table: PaperTable, store: CellStore, request: Request, count: int
) -> tuple[list[tuple[Work, list[Measurement]]], list[str]]:
    """Some of the runs behind a folder's cells, each with its cells, in an order that the request's seed decides.

    Raises:
        RunError: there is none to draw from.
    """
    columns, rows = table.choose_columns(request.columns), table.choose_rows(request.methods)
    wanted = {variant(name).name for name in request.variants}
    cells = [
        cell
        for cell in store.all()
        if cell.column in {c.label for c in columns}
        and cell.method in {r.name for r in rows}
        and (not wanted or cell.variant in wanted)
    ]
    runs = _runs_of(table, cells, request.overrides)
    left = math.inf if request.minutes is None else request.minutes
    drawn, longer = list[tuple[Work, list[Measurement]]](), 0
    for place in numpy_stream(request.seed, "rerun").permutation(len(runs)):
        work, kept = runs[place]
        if len(drawn) == count:
            break
        if kept[0].minutes > left:
            longer += 1
            continue
        left -= kept[0].minutes
        drawn.append((work, kept))
    if not drawn:
        raise RunError(f"'{store.folder}' holds no such cells" + (" that take so few minutes" if longer else ""))
    if not longer:
        return drawn, []
    return drawn, [
        f"{longer} of {len(runs)} runs were passed over, since they took longer than is left of the minutes."
    ]


def _runs_of(
    table: PaperTable, cells: Sequence[Measurement], overrides: Mapping[str, Any]
) -> list[tuple[Work, list[Measurement]]]:
    """The runs that cells are read from, in the order of the cells; cells of rows that are no more are passed over."""
    columns = {column.label: column for column in table.columns}
    rows: dict[str, Row] = {row.name: row for row in table.rows}
    found: dict[tuple[str, ...], tuple[Work, list[Measurement]]] = {}
    for cell in cells:
        if cell.column not in columns or cell.method not in rows:
            continue
        place = [columns[cell.column]], [rows[cell.method]], [variant(cell.variant)], [cell.seed]
        for work in work_for(table, *place, dict(overrides), measured=True):
            key = tuple(map(str, work.cells()))
            found.setdefault(key, (work, []))[1].append(cell)
    return list(found.values())


def measured_again(folder: Path, again: Path) -> list[Again]:
    """All cells of a table's folder that another holds as well, by this and by earlier draws, as the other has them.

    Raises:
        RunError: the first folder holds no table, the other holds another one's cells, or a file is damaged.
    """
    _, table, about = table_in(folder)
    before, now = CellStore(folder), CellStore(again)
    _check_alike(now, Origin.of(about))
    runs = _runs_of(table, [cell for cell in now.all() if cell.key in before], _settings(about))
    return [one for work, _ in runs for one in _compared(work, before, now)]


def _check_alike(again: CellStore, origin: Origin) -> None:
    """Refuse a folder with cells of another table, whose labels and names may be the same.

    Every cell counts, since the folder may be put together from several, or be from before it said whose they are.

    Raises:
        RunError: it holds some, or is another table's without any.
    """
    for other in dict.fromkeys([*read_origins(again.folder), *map(_origin, again.all())]):
        if other != origin:
            raise RunError(
                f"'{again.folder}' holds {other or 'cells that do not say of which table they are'}, and not {origin}; "
                "choose another --out"
            )


def _origin(cell: Measurement) -> Origin | None:
    """Of which table a cell's command says that it is; None if it does not say."""
    try:
        parts = shlex.split(cell.command)
    except ValueError:
        return None
    if parts[:2] != ["commonground", "reproduce"] or len(parts) < 3:
        return None
    changed = sorted(value for option, value in pairwise(parts) if option == "--set")
    return Origin(parts[2], cell.scale, tuple(changed))


def _settings(about: Mapping[str, Any]) -> dict[str, Any]:
    return assigned(about.get("set") or [])


def _compared(work: Work, before: CellStore, now: CellStore) -> Iterator[Again]:
    """What a run's cells are in both stores, as far as they are in both."""
    for arm, key in zip(work.arms, work.cells(), strict=True):
        old, new = before.get(key), now.get(key)
        if old is not None and new is not None:
            kept, measured = (reported(store, arm.column, arm.row, arm.variant.name) for store in (before, now))
            over_seeds = statistics.stdev(kept.values()) if len(kept) > 1 else None
            yield Again(old, new, kept.get(work.seed), measured.get(work.seed), over_seeds)


def rerun_table(found: Sequence[Again]) -> Table:
    """A line for each cell: what was kept, what was measured now, how far apart seeds are, and what else computed."""
    rows = [
        {
            "column": one.before.column,
            "method": one.before.method,
            "change": one.before.variant,
            "seed": one.before.seed,
            "kept (%)": _percent(one.kept),
            "now (%)": _percent(one.measured),
            "off by": _percent(one.off),
            "over seeds": _percent(one.over_seeds, digits=2),
            "the same": ALIKE if one.same else OTHER_WEIGHTS if one.same_accuracies else OTHER,
            "computed with": "; ".join(one.changed) or "the same",
        }
        for one in found
    ]
    numeric = {"seed", "kept (%)", "now (%)", "off by", "over seeds"}
    names = rows[0] if rows else ()
    return Table("Cells measured again", tuple(Column(name, name in numeric) for name in names), rows)


def _percent(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"
