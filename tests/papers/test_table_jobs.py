"""``--jobs``: a table's runs trained side by side."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commonground.cli import main
from commonground.errors import DataError, RunError
from commonground.papers import experiments
from commonground.papers.request import Request
from commonground.papers.tables import jobs
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.fill import work_for
from commonground.papers.tables.jobs_progress import JobsProgress
from commonground.papers.tables.judge import run_table
from commonground.papers.tables.variants import PAPER
from tests.papers.small_table import COLUMN, ROWS, TABLE, copied, request

TWO = ("fedrep", "fedavg")


def dies(seed: int, asked: Request) -> None:
    """As a process that the system ends for want of memory."""
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def fails(seed: int, asked: Request) -> None:
    raise RunError("the disk is full")


def lacks(seed: int, asked: Request) -> None:
    raise DataError("there is no such file")


def test_the_cells_are_those_of_one_process(filled: Path, tmp_path: Path) -> None:
    outcome = run_table(TABLE, request(tmp_path, methods=TWO, seeds=2, jobs=2))
    alone, together = ({cell.key: cell.weights_sha256 for cell in CellStore(f).all()} for f in (filled, tmp_path))
    assert together == alone
    assert outcome.notes == run_table(TABLE, request(filled, methods=TWO, seeds=2)).notes
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.rglob("*.lock"))


def test_what_is_there_takes_no_process(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied(filled, tmp_path)
    monkeypatch.setattr(jobs._Jobs, "begun", lambda *_: pytest.fail("it begins processes"))
    run_table(TABLE, request(tmp_path, methods=TWO, seeds=2, jobs=2))


def test_time_over_stops_them(tmp_path: Path) -> None:
    outcome = run_table(TABLE, request(tmp_path, methods=TWO, jobs=2, minutes=1e-9))
    assert outcome.cells == []
    assert "Time ran out" in " ".join(outcome.notes)


def test_a_process_that_is_ended_is_a_sentence(tmp_path: Path) -> None:
    """The others go on."""
    with pytest.raises(RunError, match=r"a process of --jobs was ended \(signal 9\); the same command goes on"):
        run_table(replace(TABLE, needs=dies), request(tmp_path, methods=("fedrep",), seeds=2, jobs=2))
    assert CellStore(tmp_path).seeds(COLUMN.label, "FedRep") == [0]


def test_what_one_meets_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the disk is full"):
        run_table(replace(TABLE, needs=fails), request(tmp_path, methods=TWO, jobs=2))


def test_what_all_say_is_said_once(tmp_path: Path) -> None:
    """And ends the command where that is all there is."""
    with pytest.raises(DataError) as said:
        run_table(replace(TABLE, needs=lacks), request(tmp_path, methods=TWO, jobs=2))
    assert str(said.value) == "digits (6, 2) was left out: there is no such file"


def test_an_interruption_lets_rounds_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[jobs._Jobs] = []
    listen = jobs._Jobs.listen

    def interrupted(self: jobs._Jobs, *given: Any) -> None:
        if not begun:
            begun.append(self)
            raise KeyboardInterrupt
        listen(self, *given)

    monkeypatch.setattr(jobs._Jobs, "listen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_table(TABLE, request(tmp_path, methods=TWO, jobs=2))
    assert not begun[0].open
    assert [filled.done for filled in begun[0].filled] == [False, False]


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 0, 1, 2}, raising=False)
    assert jobs._shares(2) == [[0, 2], [1, 3]]
    assert jobs._shares(5) == [[0], [1], [2], [3], [0]]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert jobs._shares(2) == [[], []]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the display sees, to be set."""
    at = [0.0]
    monkeypatch.setattr("commonground.papers.tables.jobs_progress.time.perf_counter", lambda: at[0])
    return at


def test_what_is_shown(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of three rounds: one goes on after its first, and diverges after its second."""
    work = work_for(TABLE, [COLUMN], ROWS[:2], [PAPER], [0], {})
    one, other = ((each.arm.title, each.seed) for each in work)
    with JobsProgress(work, quiet=False) as progress:
        progress.told(one, 1, False)
        progress.told(other, 0, False)
        clock[0] = 11.0
        progress.told(other, 1, False)  # 1 round in 11 s, 4 of 6 are left
        clock[0] = 12.0
        progress.told(one, 2, True)  # 2 in 12 s; of 5 rounds 2 are left
        clock[0] = 30.0
        progress.told(other, 3, True)
    assert capsys.readouterr().err.splitlines() == [
        "2 runs side by side: 2 of 6 rounds; 44 s left in all",
        "FedRep, digits (6, 2), seed 0: trained, 1 of 2 runs; 12 s left in all",
        "FedAvg, digits (6, 2), seed 0: trained, 2 of 2 runs; 0 s left in all",
        "0 runs side by side: 5 of 5 rounds; 0 s left in all",
    ]


def test_what_is_stopped_is_not_said_to_be_trained(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    work = work_for(TABLE, [COLUMN], ROWS[:2], [PAPER], [0], {})
    one, other = ((each.arm.title, each.seed) for each in work)
    with JobsProgress(work, quiet=False) as progress:
        progress.told(one, 2, False)
        progress.stop()
        progress.told(one, 2, True)
        progress.told(other, 3, True)
    assert [line.partition(";")[0] for line in capsys.readouterr().err.splitlines()] == [
        "FedAvg, digits (6, 2), seed 0: trained, 1 of 2 runs"
    ]


@pytest.mark.parametrize("name", [name for name, one in experiments.items() if one.table is not None])
def test_tables_can_be_sent_to_a_process(name: str) -> None:
    table = experiments[name].table
    assert table is not None
    for scale in ("small", "paper"):
        assert pickle.loads(pickle.dumps(table.at_scale(scale))).name == name


def test_refused_where_nothing_is_filled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fedrep-fig1", "--jobs", "2", "--out", str(tmp_path / "a")]) == 2
    assert "--jobs is for tables that are filled cell by cell" in capsys.readouterr().err
    assert main(["reproduce", "--rerun", str(tmp_path), "--jobs", "2", "--out", str(tmp_path / "a")]) == 2
    assert "leave out --jobs" in capsys.readouterr().err
