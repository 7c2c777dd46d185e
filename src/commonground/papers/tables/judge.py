"""Cells beside the printed values, and claims judged over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from commonground.counted import counted
from commonground.errors import ConfigError, DataError, RunError
from commonground.papers.claims import Side, claim
from commonground.papers.figures import Curve, Figure
from commonground.papers.outcome import Cell, Claim, Outcome
from commonground.papers.printed_values import printed_side
from commonground.papers.request import Request
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.differences import differences_table
from commonground.papers.tables.fill import Work, check_settings, fill, work_for
from commonground.papers.tables.jobs import fill_side_by_side
from commonground.papers.tables.readings import Which, at_round, precisions, reported
from commonground.papers.tables.table import PaperColumn, PaperTable, Row
from commonground.papers.tables.variants import variant
from commonground.statistics import Values, student_interval
from commonground.table import Column, Table

__all__ = ["asked_for", "outcome_of", "run_table", "there"]

ON_OWN_BODY = "tested on bodies just trained"
OWN_BODIES = ("column", "method", "paper", "measured", "95 %", "seeds")
CURVES = {
    "accuracy": ("accuracy", True),
    "global_nc2": ("Global NC2", False),
    "local_nc2": ("Averaged Local NC2", False),
}


def run_table(table: PaperTable, request: Request) -> Outcome:
    """Measure what is asked for and missing, and judge all that is there.

    Args:
        table: the printed table.
        request: what was asked for; its folder keeps the cells.

    Raises:
        ConfigError: a column, method or variant is unknown.
        DataError: the data of all that was asked for are not there.
        RunError: the folder's files are damaged, or of another scale.
    """
    going = request.going
    work, left = asked_for(table, request)
    table, store = table.at_scale(request.scale), CellStore(request.folder)
    filling = fill if request.jobs == 1 else fill_side_by_side
    notes, done = filling(table, work, store, request, going)
    store.read()
    if done and notes and not any(key in store for one in work for key in one.cells()):
        raise DataError(" ".join(notes))  # of all that was asked for nothing could be measured
    outcome = outcome_of(table, store)
    outcome.notes += [*left, *notes]
    if not done:
        outcome.notes.append("Time ran out before all that was asked for was measured; the same command goes on.")
    return outcome


def asked_for(table: PaperTable, request: Request) -> tuple[list[Work], list[str]]:
    """The runs behind the cells that are asked for, whether they are there or not, and remarks about them.

    Args:
        table, request: see :func:`run_table`.

    Raises:
        ConfigError: a column, method, variant or setting is unknown, or what is set is not to be set there.
        RunError: the folder's files are damaged, or of another scale.
    """
    table = table.at_scale(request.scale)
    columns, rows = table.choose_columns(request.columns), table.choose_rows(request.methods)
    variants = [variant(name) for name in request.variants or ("",)]
    for cell in CellStore(request.folder).all():
        if cell.scale != request.scale:
            raise RunError(f"'{request.folder}' holds cells of scale {cell.scale}; choose another --out")
    for key in table.named_by:
        if key in request.overrides:
            raise ConfigError(
                f"the rows of {table.name} are named by {key}, which is not set but chosen, such as "
                f"--methods {table.rows[-1].key}"
            )
    seeds = request.seed_range(table.seeds)
    work = work_for(table, columns, rows, variants, seeds, dict(request.overrides))
    left = _without_overrides(work, request.overrides)
    check_settings(work, request)
    return work, left


def _without_overrides(work: Sequence[Work], overrides: Mapping[str, Any]) -> list[str]:
    """Sentences about methods that are measured without a setting of the user's, since it says nothing to them.

    Raises:
        ConfigError: it says nothing to any of them.
    """
    arms = [arm for one in work for arm in one.arms]
    notes = []
    for key, value in overrides.items():
        without = {arm.row.name: None for arm in arms if key not in {**arm.settings, **arm.options}}
        if arms and len(without) == len({arm.row.name for arm in arms}):
            raise ConfigError(f"--set {key}={value} says nothing to {', '.join(without)}; leave it out")
        if without:
            notes.append(f"--set {key}={value} says nothing to {', '.join(without)}: measured without it.")
    return notes


def there(table: PaperTable, request: Request) -> Outcome:
    """What the cells that are in the request's folder say, without measuring any.

    Raises:
        RunError: the folder's files are damaged.
    """
    outcome = outcome_of(table.at_scale(request.scale), CellStore(request.folder))
    if request.overrides:
        said = ", ".join(f"{name}={value}" for name, value in request.overrides.items())
        outcome.notes.insert(0, f"Set for these runs (--set): {said}; where the notes below say otherwise, this holds.")
    return outcome


def outcome_of(table: PaperTable, store: CellStore) -> Outcome:
    """All that the cells of a folder say of a table."""
    outcome = Outcome()
    for column in table.columns:
        there = [row for row in table.rows if reported(store, column, row)]
        for row in there:
            outcome.cells.append(_cell(table, store, column, row))
        if there and column.note:
            outcome.notes.append(f"{column.label}: {column.note}")
        outcome.claims += _claims(table, store, column, there)
        if table.own_bodies:
            outcome.claims += _claims(table, store, column, there, "own-body")
        outcome.claims += _comparisons(table, store, column)
        outcome.figures |= _figures(table, store, column, there)
    if table.drawn is not None:
        outcome.figures = {**table.drawn(table, store), **outcome.figures}
    measured = {cell.method for cell in outcome.cells}
    outcome.notes += [f"{row.name}: {row.note}" for row in table.rows if row.note and row.name in measured]
    outcome.notes += table.notes
    for cell in store.all():
        if cell.diverged:
            outcome.notes.append(f"{cell.method}, {cell.column}, seed {cell.seed} has no value: {cell.diverged}")
    outcome.notes += _other_precisions(store)
    if table.own_bodies:
        outcome.tables += _own_bodies(table, store)
    effects = differences_table(table, store)
    if effects.rows:
        outcome.tables.append(effects)
    missing = [c.label for c in table.columns if c.label not in {cell.column for cell in outcome.cells}]
    if missing:
        outcome.notes.append(f"Not measured yet: {', '.join(missing)}.")
    return outcome


def _other_precisions(store: CellStore) -> list[str]:
    """How many cells were computed with coarser products than the paper's."""
    cells = [cell for cell in store.all() if not cell.variant]
    counts = Counter(cell.precision for cell in cells if cell.precision != "fp32")
    return [
        f"{count} of {len(cells)} cells are of runs whose products were computed in {name} (weights, averages and "
        f"losses in fp32); cells.csv names them."
        for name, count in sorted(counts.items())
    ]


def _own_bodies(table: PaperTable, store: CellStore) -> list[Table]:
    """The printed table once more, of clients as they end a round; none if no cell says it."""
    rows = []
    for column in table.columns:
        for row in table.rows:
            values = [100 * value for value in reported(store, column, row, which="own-body").values()]
            if values:
                middle, low, high = (round(float(v), 2) for v in student_interval(values))
                within = f"{low} to {high}" if len(values) > 1 else "one seed"
                paper = table.paper(row, column)
                rows.append(
                    dict(zip(OWN_BODIES, (column.label, row.name, paper, middle, within, len(values)), strict=True))
                )
    columns = tuple(Column(name, name in ("paper", "measured")) for name in OWN_BODIES)
    return [Table(f"Accuracy (%), {ON_OWN_BODY}", columns, rows)] if rows else []


def _cell(table: PaperTable, store: CellStore, column: PaperColumn, row: Row) -> Cell:
    values = [100 * value for value in reported(store, column, row).values()]
    return Cell.over_seeds(column.label, row.name, table.paper(row, column), values)


def _claims(
    table: PaperTable, store: CellStore, column: PaperColumn, there: Sequence[Row], which: Which = "last10"
) -> list[Claim]:
    """Every champion against every other row, over the seeds that both have; rows of one printed value are ways to
    measure it, not rivals.
    """
    found = []
    tested = f", {ON_OWN_BODY}" if which == "own-body" else ""
    rows = {row.name: row for row in there}
    for number, champion in enumerate(table.champions):
        for row in there:
            if champion not in rows or row.name in table.champions[: number + 1]:
                continue
            if (rows[champion].printed or champion) == (row.printed or row.name):
                continue
            one, other = (reported(store, column, r, which=which) for r in (rows[champion], row))
            ours, theirs = (table.paper(r, column) for r in (rows[champion], row))
            paper = None if ours is None or theirs is None else round(ours - theirs, 3)
            side = printed_side(paper)
            text = f"{champion} {side} {row.name} on {column.label}{tested}"
            found += _lead(table, store, column, (champion, row.name), text, paper, one, other, side)
    return found


def _lead(
    table: PaperTable,
    store: CellStore,
    column: PaperColumn,
    names: tuple[str, str],
    text: str,
    paper: float | None,
    one: Mapping[int, float],
    other: Mapping[int, float],
    side: Side = "above",
) -> list[Claim]:
    """One row above another (or below), over the seeds that both have; it says in how many of them cells are compared
    whose products were computed in different precisions.
    """
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return []
    judged = claim(text, table.source, paper, [100 * (one[s] - other[s]) for s in seeds], side)
    pairs = [precisions(store, column, names, seed) for seed in seeds]
    mixed = [" with ".join(both) for both in pairs if len(both) > 1]
    told = f"{len(mixed)} of {counted(len(seeds), 'seed')} compare {' or '.join(dict.fromkeys(mixed))}"
    return [replace(judged, remark=told if mixed else "")]


def _comparisons(table: PaperTable, store: CellStore, column: PaperColumn) -> list[Claim]:
    """What a table has compared beside its champions."""
    found, rows = [], {row.name: row for row in table.rows}
    for asked in table.comparisons:
        one, other = (
            reported(store, column, rows[name]) if asked.at is None else at_round(store, column, rows[name], asked.at)
            for name in (asked.one, asked.other)
        )
        text = asked.text.replace("COLUMN", column.label)
        found += _lead(table, store, column, (asked.one, asked.other), text, None, one, other)
    return found


def _figures(table: PaperTable, store: CellStore, column: PaperColumn, rows: Sequence[Row]) -> dict[str, Figure]:
    """Accuracy and neural collapse by round, where they were measured in more than the last rounds; new clients'
    accuracy by epoch.
    """
    curves, over = store.curves(column.label), "round" if table.served is None else "epoch"
    figures = {}
    shown = CURVES if table.values else {"accuracy": CURVES["accuracy"]}  # a figure is of nothing else
    for name, (title, percent) in shown.items():
        lines = {}
        for row in rows:
            own = [c for (_, method, changed, _), c in curves.items() if method == row.name and not changed]
            rounds = sorted(set.intersection(*(set(c) for c in own))) if own else []
            rounds = [r for r in rounds if all(name in c[r] for c in own)]
            if len(rounds) > 1:
                values: Values = np.array([[c[r][name] for r in rounds] for c in own])
                lines[row.name] = Curve(rounds, *(v.tolist() for v in student_interval(values)))
        if lines:
            reads = f"Means over {_seeds(store, column, rows)}; bands are their 95 % intervals."
            figures[f"{title} by {over}, {column.label}"] = Figure(over, title, lines, percent=percent, reads=reads)
    return figures


def _seeds(store: CellStore, column: PaperColumn, rows: Sequence[Row]) -> str:
    counts = sorted({len(store.seeds(column.label, row.name)) for row in rows} - {0})
    several = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{several} seed{'s' if counts[-1] != 1 else ''}"
