"""Several processes fill one table's folder: no cell is lost, and none is measured twice."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest.mock import patch

import pytest

from commonground import engine
from commonground.cli import main
from commonground.engine.state.lock import locked_file
from commonground.errors import BusyError, RunError
from commonground.papers.experiment import Experiment
from commonground.papers.tables.cells import CellStore, Measurement
from commonground.papers.tables.fill import fill, work_for
from commonground.papers.tables.judge import run_table
from commonground.papers.tables.variants import PAPER
from tests.papers.small_table import COLUMN, ROWS, TABLE, request


def _measured(folder: Path, seeds: int) -> None:
    """What a command of its own does, with a line for every training."""
    whole = engine.train

    def train(*given: Any, **settings: Any) -> Any:
        with open(folder / "trainings", "a") as log:
            log.write(f"{settings['out'].relative_to(folder)}\n")
        return whole(*given, **settings)

    Experiment("a-table", "title", "a paper", lambda asked: run_table(TABLE, asked), table=TABLE)
    words = ["reproduce", "a-table", "--scale", "paper", "--methods", "fedrep,fedavg", "--seeds", str(seeds)]
    with patch("commonground.papers.tables.fill.train", train):
        assert main([*words, "--quiet", "--out", str(folder)]) == 0


def test_processes_fill_one_folder_together(filled: Path, tmp_path: Path) -> None:
    """All with the same list: no cell is lost, none is measured twice, and the numbers are those of one process."""
    three = [mp.get_context("spawn").Process(target=_measured, args=(tmp_path, 2)) for _ in range(3)]
    for one in three:
        one.start()
    for one in three:
        one.join()
    assert [one.exitcode for one in three] == [0, 0, 0]
    trainings = (tmp_path / "trainings").read_text().splitlines()
    assert sorted(trainings) == sorted(set(trainings))
    assert len(trainings) == 4
    alone, together = ({cell.key: cell.weights_sha256 for cell in CellStore(f).all()} for f in (filled, tmp_path))
    assert together == alone
    for kind in ("clients", "curves"):
        rows = [sorted((f / kind / "digits-6-2.csv").read_text().splitlines()) for f in (filled, tmp_path)]
        assert rows[0] == rows[1]
    assert "FedAvg" in (tmp_path / "table.csv").read_text()
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.rglob("*.lock"))


def _added(folder: Path, seeds: range, cell: Measurement) -> None:
    store = CellStore(folder)
    for seed in seeds:
        store.add(replace(cell, seed=seed), [0.5], {1: {"accuracy": 0.5}})


def test_processes_add_cells_at_once(filled: Path, tmp_path: Path) -> None:
    cell = CellStore(filled).all()[0]
    spawn = mp.get_context("spawn")
    three = [spawn.Process(target=_added, args=(tmp_path, range(n, 60, 3), cell)) for n in range(3)]
    for one in three:
        one.start()
    for one in three:
        one.join()
    assert CellStore(tmp_path).seeds(cell.column, cell.method) == list(range(60))
    assert len(CellStore(tmp_path).curves(cell.column)) == 60


def test_cells_that_two_stores_add_are_all_there(filled: Path, tmp_path: Path) -> None:
    one, other = CellStore(tmp_path), CellStore(tmp_path)
    cells = CellStore(filled).all()
    for n, cell in enumerate(cells):
        (one, other)[n % 2].add(cell, [0.5], {1: {"accuracy": 0.5}})
    assert {cell.key for cell in CellStore(tmp_path).all()} == {cell.key for cell in cells}


def test_a_run_that_another_process_has_is_left_to_it(tmp_path: Path) -> None:
    with locked_file(tmp_path / ".runs-digits-6-2-apfl-seed-0.lock"):
        outcome = run_table(TABLE, request(tmp_path, methods=("fedrep", "apfl")))
    assert {cell.method for cell in outcome.cells} == {"FedRep"}
    assert "APFL, digits (6, 2), seed 0, was being measured by another process." in outcome.notes


def test_what_another_process_has_measured_by_the_end_is_there(filled: Path, tmp_path: Path) -> None:
    """It has the run when this one comes to it, and is done before this one's end."""

    @contextmanager
    def busy(path: Path) -> Iterator[None]:
        copytree(filled, tmp_path, dirs_exist_ok=True)
        raise BusyError("another process has it")
        yield

    with patch("commonground.papers.tables.fill.locked_file", busy):
        outcome = run_table(TABLE, request(tmp_path, methods=("fedavg",)))
    assert {cell.method for cell in outcome.cells} == {"FedRep", "FedAvg", "FedAvg+FT"}
    assert not [note for note in outcome.notes if "another process" in note]


def test_folders_of_runs_come_and_go_while_others_wait(tmp_path: Path) -> None:
    """Or one process would remove an empty folder in which another is about to make its own."""
    seen = []

    def watched(name: str) -> Any:
        whole = getattr(Path, name)

        def call(path: Path, *given: Any, **more: Any) -> Any:
            if path == tmp_path / "runs" / "digits-6-2" / "fedrep" / "seed-0":
                seen.append((name, (tmp_path / ".cells.lock").exists()))
            return whole(path, *given, **more)

        return patch.object(Path, name, call)

    with watched("mkdir"), watched("rmdir"):
        run_table(TABLE, request(tmp_path, methods=("fedrep",)))
    assert seen[0] == ("mkdir", True)
    assert seen[-1] == ("rmdir", True)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunError, match="runs/digits-6-2/fedrep/seed-0' cannot be written"):
        run_table(TABLE, request(tmp_path, methods=("fedrep",)))


def test_a_cell_that_came_meanwhile_is_not_measured_again(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, work = CellStore(tmp_path), work_for(TABLE, [COLUMN], [ROWS[0]], [PAPER], [0], {})
    copytree(filled, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr("commonground.papers.tables.fill.train", lambda *_, **__: pytest.fail("it trains"))
    assert fill(TABLE, work, store, request(tmp_path)) == ([], True)
    assert len(store) == len(CellStore(filled))
