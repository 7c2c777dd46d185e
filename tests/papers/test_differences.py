"""What one printed value is measured as, and what each way of it and each reading moves."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.differences import OWN_BODY, differences_table
from commonground.papers.tables.judge import outcome_of
from commonground.papers.tables.table import Row
from tests.papers.small_table import ROWS, TABLE


def test_another_way_to_measure_a_printed_value_is_a_difference(filled: Path, tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    way = Row("FedRep, again", "fedrep", printed="FedRep")
    first = {cell.seed: cell for cell in CellStore(filled).all() if cell.method == "FedRep"}
    for seed, (before, after) in enumerate(((0.5, 0.53), (0.6, 0.65), (0.7, 0.9))):
        precision = "bf16" if seed == 2 else "fp32"  # which says of the third seed nothing
        for name, value, how in (("FedRep", before, "fp32"), (way.name, after, precision)):
            cell = replace(first[0], method=name, seed=seed, personal_last10=value, precision=how)
            store.add(cell, [value], {})
    table = replace(TABLE, rows=(*ROWS, way))
    (row,) = differences_table(table, store).rows
    assert (row["method"], row["change"], row["moves it by"], row["seeds"]) == (
        "FedRep", "measured as 'FedRep, again'", 4.0, 2,
    )  # fmt: skip


def test_ways_to_measure_one_printed_value_are_no_rivals(filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    again, store = Row("FedRep, again", "fedrep", printed="FedRep"), CellStore(tmp_path)
    (first, *_) = (cell for cell in store.all() if cell.method == "FedRep")
    store.add(replace(first, method=again.name), [0.5], {})
    table = replace(TABLE, rows=(*ROWS, again), champions=("FedRep", "FedRep, again"))
    claims = [claim.claim for claim in outcome_of(table, store).claims]
    assert "FedRep, again above FedAvg on digits (6, 2)" in claims
    assert not [text for text in claims if "above FedRep" in text]


def test_a_test_on_participants_own_bodies_is_a_reading_of_the_same_run(filled: Path, tmp_path: Path) -> None:
    """By the gain of local training in the last ten rounds; fine-tuned and global figures have no such reading."""
    store = CellStore(tmp_path)
    for cell in CellStore(filled).all():
        curves = {
            r: {"accuracy": 0.5, "before_local": 0.5, "after_local": gain + 0.5}
            for r, gain in ((5, 0.4), (95, 0.02), (100, 0.04))
        }
        store.add(replace(cell, rounds=100), [0.5], curves)
    rows = [row for row in differences_table(TABLE, store).rows if row["change"] == OWN_BODY]
    assert {row["method"] for row in rows} == {"FedRep", "APFL"} & {cell.method for cell in store.all()}
    assert {row["moves it by"] for row in rows} == {3.0}


def test_leads_are_judged_on_bodies_just_trained_where_a_table_says_so(filled: Path, tmp_path: Path) -> None:
    """FedRep 0.50 + 0.20 and 0.60 + 0.10, APFL 0.55 + 0.05 and 0.55 + 0.10: leads of -5 and 5 turn to 10 and 5."""
    store, tested = CellStore(tmp_path), ", tested on bodies just trained"
    (one, *_) = (cell for cell in CellStore(filled).all() if cell.method == "FedRep")
    for method, values in {"FedRep": ((0.5, 0.2), (0.6, 0.1)), "APFL": ((0.55, 0.05), (0.55, 0.1))}.items():
        for seed, (value, gain) in enumerate(values):
            cell = replace(one, method=method, seed=seed, personal_last10=value, rounds=100)
            curves = {r: {"accuracy": 0.5, "before_local": 0.5, "after_local": 0.5 + gain} for r in (95, 100)}
            store.add(cell, [value], curves)
    claims = {claim.claim: claim for claim in outcome_of(replace(TABLE, own_bodies=True), store).claims}
    assert round(claims["FedRep above APFL on digits (6, 2)"].measured, 9) == 0
    assert round(claims[f"FedRep above APFL on digits (6, 2){tested}"].measured, 9) == 7.5
    (table,) = (each for each in outcome_of(replace(TABLE, own_bodies=True), store).tables if "bodies" in each.title)
    assert [(row["method"], row["measured"], row["seeds"]) for row in table.rows] == [
        ("FedRep", 70.0, 2), ("APFL", 62.5, 2),
    ]  # fmt: skip
    assert not [claim for claim in outcome_of(TABLE, store).claims if claim.claim.endswith(tested)]


@pytest.mark.parametrize("clients", [100, 250, 1000])
def test_every_clients_accuracy_is_kept(clients: int, filled: Path, tmp_path: Path) -> None:
    (one, *_) = CellStore(filled).all()
    values = np.round(np.random.default_rng(clients).random(clients), 4)
    cell = replace(one, column="CIFAR-10 (1000, 2)", variant="-x")
    CellStore(tmp_path).add(cell, values, {1: {"accuracy": 0.5}})
    again = CellStore(tmp_path)
    assert again.all()[0] == cell
    np.testing.assert_allclose(again.clients(cell.key), values)
