"""A printed table in its own form, ours beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.side_by_side import side_by_side
from tests.papers.small_table import COLUMN, TABLE

TWO = replace(TABLE, columns=(COLUMN, replace(COLUMN, label="digits (9, 5)")))


def cells(filled: Path, folder: Path) -> CellStore:
    """FedRep 0.50, 0.60, 0.64, gaining 0.2, 0.1, 0.0 in its last rounds; FedAvg's global model 0.25."""
    store, of = CellStore(folder), {cell.method: cell for cell in CellStore(filled).all()}
    for seed, (value, gain) in enumerate(((0.5, 0.2), (0.6, 0.1), (0.64, 0.0))):
        curve = {r: {"accuracy": 0.5, "before_local": 0.5, "after_local": 0.5 + gain} for r in (95, 100)}
        store.add(replace(of["FedRep"], seed=seed, personal_last10=value, rounds=100), [value], curve)
    store.add(replace(of["FedAvg"], seed=0, global_last10=0.25, personal_last10=0.9, rounds=100), [0.25], {})
    return store


def test_methods_by_columns_with_the_printed_value_beside_the_mean(filled: Path, tmp_path: Path) -> None:
    """Rows and columns of which nothing is there are left out; fewer than three seeds are told."""
    table = side_by_side("both", TWO, cells(filled, tmp_path))
    assert table.names == ["method", "digits (6, 2) printed", "digits (6, 2) ours"]
    assert [[str(row[name]) for name in table.names] for row in table.rows] == [
        ["FedRep", "87.7", "58.0"],
        ["FedAvg", "42.65", "25.0 (1 seed)"],
    ]


def test_a_table_judged_on_own_bodies_shows_these_too(filled: Path, tmp_path: Path) -> None:
    table = side_by_side("both", replace(TWO, own_bodies=True), cells(filled, tmp_path))
    assert table.names[2:] == ["digits (6, 2) ours", "digits (6, 2) on own body"]
    assert [str(row["digits (6, 2) on own body"]) for row in table.rows] == ["68.0", "None"]


def test_of_no_cells_nothing_is_shown(tmp_path: Path) -> None:
    assert not side_by_side("both", TWO, CellStore(tmp_path)).rows
