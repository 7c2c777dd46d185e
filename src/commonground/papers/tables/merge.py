"""Cells that were measured elsewhere, added to a table's folder: several machines fill one table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from commonground.errors import RunError
from commonground.papers.experiment import Experiment
from commonground.papers.tables.cells import CELLS, CellKey, CellStore, Measurement
from commonground.papers.tables.folder import table_in
from commonground.papers.tables.judge import outcome_of
from commonground.papers.tables.table import PaperTable
from commonground.papers.writing import about_of, write_outcome

__all__ = ["Conflict", "Merged", "merge_cells"]

Conflict = Literal["refuse", "keep", "replace"]

SAME = ("experiment", "scale", "set")
"""What folders of one table have in common, in ``reproduction.json``."""
RESULT = (
    *("personal_last10", "personal_final", "global_last10", "global_final", "best"),
    *("diverged", "rounds", "weights_sha256"),
)


@dataclass
class Merged:
    """What has become of the cells of other folders.

    Attributes:
        added: there was none of their column, method, variant and seed.
        replaced: one with another result was there.
        left: one was there and stays, with the same result or by choice.
    """

    added: list[CellKey] = field(default_factory=list)
    replaced: list[CellKey] = field(default_factory=list)
    left: list[CellKey] = field(default_factory=list)


def merge_cells(target: Path, sources: Sequence[Path], on_conflict: Conflict = "refuse") -> Merged:
    """Add the cells of folders to those of another one, and judge its table anew.

    Args:
        target: gets the cells; may be new.
        sources: folders of the same table, at the same scale and with the same ``--set``, one after another.
        on_conflict: of two different results of one cell, whether the one that is there first stays.

    Returns:
        Whose cells have come, and how.

    Raises:
        RunError: a folder is damaged, or of something else, or two have a cell with different results. Nothing is
            changed then.
    """
    chosen, table, about = _common(target, sources)
    store, others, merged = CellStore(target), [CellStore(source) for source in sources], Merged()
    coming = dict[CellKey, tuple[Measurement, CellStore]]()
    with store.alone():  # so that nobody adds what is looked for here
        store.read()
        for other in others:
            for cell in other.all():
                there, where = coming[cell.key] if cell.key in coming else (store.get(cell.key), store)
                if there is None:
                    coming[cell.key] = cell, other
                elif _alike(cell, there) or on_conflict == "keep":
                    merged.left.append(cell.key)
                elif on_conflict == "replace":
                    coming[cell.key] = cell, other
                else:
                    raise RunError(
                        f"'{where.folder}' and '{other.folder}' have different results of {cell.method}, "
                        f"{cell.column}, seed {cell.seed}; choose --on-conflict keep (the former) or replace"
                    )
        for key, (cell, other) in coming.items():
            (merged.replaced if key in store else merged.added).append(key)
            store.add_alone(cell, other.clients(key), other.curves(cell.column).get(key, {}))
        outcome = outcome_of(table, store)
        outcome.leave_out_undefined()
        outcome.notes += [note for note in about.get("notes", []) if note.startswith("--set ")]  # of how it was filled
        write_outcome(outcome, chosen, about_of(about), target)
    return merged


def _common(target: Path, sources: Sequence[Path]) -> tuple[Experiment, PaperTable, dict[str, Any]]:
    """The table that all folders are of, and what the target's file says; the first source's where it has none.

    Raises:
        RunError: they are of different ones, or one is of none.
    """
    if target.resolve() in [source.resolve() for source in sources]:
        raise RunError(f"'{target}' cannot be added to itself")
    first = target if (target / "reproduction.json").is_file() else sources[0]
    if first is not target and len(CellStore(target)):
        raise RunError(f"'{target}' holds cells and no reproduction.json, which says of what; choose another --out")
    chosen, table, about = table_in(first)
    if first is not target:  # each cell has its own command; this is how they have come together
        parts = [part for source in sources for part in ("--merge", source.name)]
        about |= {"command": shlex.join(["commonground", "reproduce", *parts, "--out", target.name])}
    for source in sources:
        _, _, other = table_in(source)
        if not len(CellStore(source)):
            raise RunError(f"'{source}' holds no cells (it has no {CELLS})")
        for name in SAME:
            if (other.get(name) or None) != (about.get(name) or None):  # earlier versions wrote no empty list
                raise RunError(
                    f"'{source}' is of {name} {_told(other.get(name))} and '{first}' of {name} "
                    f"{_told(about.get(name))}; only cells of the same table, scale and settings belong together"
                )
    return chosen, table, about


def _told(value: Any) -> str:
    return "none" if value in (None, []) else ", ".join(value) if isinstance(value, list) else str(value)


def _alike(one: Measurement, other: Measurement) -> bool:
    """Whether results are the same to the last digit, wherever and however fast they were computed."""
    return all(getattr(one, name) == getattr(other, name) for name in RESULT)
