"""What is read from a cell: which of a run's accuracies the papers report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from commonground.papers.tables.cells import CellStore, Measurement
from commonground.papers.tables.table import PaperColumn, Row

__all__ = ["LAST", "Which", "at_round", "has_own_body", "precisions", "reported"]

LAST = 10
"""Rounds whose accuracies the papers average."""

Which = Literal["last10", "final", "best", "own-body"]


def reported(
    store: CellStore, column: PaperColumn, row: Row, variant: str = "", which: Which = "last10"
) -> dict[int, float]:
    """What the papers report of a cell, by seed: the accuracy averaged over the last ten rounds, as a share.

    Local Only by passes, fine-tuned models and new clients are tested once, after the last round.

    Args:
        store: with the cells.
        column, row, variant: which cell.
        which: ``final`` for the last round alone, ``best`` for the best of the tested rounds, ``own-body`` for clients
            tested as they end a round, on the body that they have trained and not on the average that they began with:
            by what local training gains the participants of the last ten rounds, where the cell's curve has it.
    """
    found = {}
    for seed in store.seeds(column.label, row.name, variant):
        cell = store.get((column.label, row.name, variant, seed))
        value = None if cell is None else _figure(store, cell, row, which)
        if value is not None:
            found[seed] = value
    return found


def at_round(store: CellStore, column: PaperColumn, row: Row, at: int) -> dict[int, float]:
    """What a cell's curve is at a round (of new clients an epoch), by seed, as a share; of the paper's own setting."""
    found, curves = {}, store.curves(column.label)
    for seed in store.seeds(column.label, row.name):
        value = curves.get((column.label, row.name, "", seed), {}).get(at, {}).get("accuracy")
        if value is not None:
            found[seed] = value
    return found


def precisions(store: CellStore, column: PaperColumn, names: Iterable[str], seed: int) -> list[str]:
    """In which precisions the products of a seed's cells of these rows were computed, each once, sorted."""
    cells = [store.get((column.label, name, "", seed)) for name in names]
    return sorted({cell.precision for cell in cells if cell is not None})


def has_own_body(row: Row) -> bool:
    """Whether a round's participants have what the row reports: no global model, and none that is tuned at the end."""
    return row.reads == "personal" and not row.settings.get("finetune_epochs")


def _figure(store: CellStore, cell: Measurement, row: Row, which: Which) -> float | None:
    if which == "best":
        return cell.best
    if which == "own-body":
        return _on_own_body(store, cell) if has_own_body(row) else None
    if row.reads == "trained":  # which a run's summary has no figure of
        first = cell.rounds - (LAST if which == "last10" else 1)
        at = [one["accuracy"] for r, one in store.curves(cell.column).get(cell.key, {}).items() if r > first]
        return sum(at) / len(at) if at else None
    value: float | None = getattr(cell, f"{row.reads}_{which}")
    return value


def _on_own_body(store: CellStore, cell: Measurement) -> float | None:
    late = [at for r, at in store.curves(cell.column).get(cell.key, {}).items() if r > cell.rounds - LAST]
    gains = [at["after_local"] - at["before_local"] for at in late if {"after_local", "before_local"} <= at.keys()]
    # The gain, not the participants' accuracy: a mean over ten participations is rougher than one over all clients.
    return cell.personal_last10 + sum(gains) / len(gains) if gains and cell.personal_last10 is not None else None
