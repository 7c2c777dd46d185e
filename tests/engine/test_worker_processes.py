"""What worker processes have of their parent's."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from commonground import train
from commonground.algorithms import Client, Tensors
from commonground.algorithms.fedavg import FedAvg
from commonground.config import RunConfig
from commonground.engine.backends.factory import make_engine
from commonground.engine.prepare import prepare_setup
from commonground.errors import ConfigError, RunError
from commonground.tasks import Classification, tasks
from tests.helpers import made_data, own

PARENT = os.getpid()


class Left:
    """Something that only the process that made it can end well, in a cycle that waits for a collection."""

    def __init__(self, ends: Path) -> None:
        self.ends, self.cycle = ends, self

    def __del__(self) -> None:
        with open(self.ends, "a") as file:
            file.write(f"{os.getpid()}\n")


SEEN: list[Path] = []  # files to which workers write whether they collect by themselves


def _see() -> None:
    for path in SEEN:
        with open(path, "a") as file:
            file.write(f"{gc.isenabled()}\n")


os.register_at_fork(after_in_child=_see)


class Collecting(nn.Linear):
    """A network in whose training a worker collects everything it can."""

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != PARENT:
            gc.collect()
            _see()
        return super().forward(x)


@pytest.mark.parametrize("enabled", [True, False])
def test_what_the_parent_has_left_is_not_ended_by_its_workers(tmp_path: Path, enabled: bool) -> None:
    data, before, often = made_data(), gc.isenabled(), gc.get_threshold()
    gc.collect()
    try:
        (gc.enable if enabled else gc.disable)()
        gc.set_threshold(10**9)  # the parent collects nothing by itself
        Left(tmp_path / "ends")
        SEEN.append(tmp_path / "collectors")
        train("fedavg", data, model=Collecting(data.x_train.shape[1], data.classes), rounds=1, engine="processes")
        assert gc.isenabled() == enabled
        assert not (tmp_path / "ends").exists()
        gc.collect()
    finally:
        SEEN.clear()
        gc.set_threshold(*often)
        (gc.enable if before else gc.disable)()
    assert (tmp_path / "ends").read_text() == f"{os.getpid()}\n"
    first, *later = (tmp_path / "collectors").read_text().split()
    assert first == "False"  # a worker collects nothing before it has set the parent's aside
    assert later[-1] == str(enabled)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
def test_how_a_worker_ended_is_told() -> None:
    def kill_one(row: dict[str, object]) -> None:
        if row["round"] == 1:
            pid = multiprocessing.active_children()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(RunError, match=r"a worker process ended unexpectedly \(signal 9\), perhaps for lack of memory"):
        train("fedavg", made_data(), engine="processes", workers=2, rounds=3, model="mlp", on_round=kill_one)


def test_what_cannot_be_sent_to_the_runs_process_is_said_to_be_that() -> None:
    class TwoWords(ConfigError):
        def __init__(self, one: str, other: str) -> None:
            super().__init__(f"{one} {other}")

    @own
    class Bad(FedAvg):
        def client_update(self, client: Client, round: int) -> Tensors:
            raise TwoWords("too", "bad")

    with pytest.raises(ConfigError, match=r"^too bad$"):
        train(Bad(), made_data((6, 6)), rounds=1, engine="processes", workers=2)

    class Mine(Classification):
        """Of a class that no other process can find."""

        name = "of-a-test"

    try:
        task = Mine()
        data = replace(made_data((6, 6)), task=task)
        with pytest.raises(RuntimeError, match="what the worker found cannot be sent to the run's process"):
            train("fedavg", data, rounds=1, engine="processes", workers=2)
    finally:
        tasks.pop("of-a-test", None)


@pytest.mark.parametrize("engine", ["serial", "batched", "messages", "processes"])
def test_workers_that_are_not_used_are_spoken_of(engine: str) -> None:
    said = f"--workers 3 is not used: the engine '{engine}' computes in one process; take --engine processes"
    assert _remark(engine, workers=3) == ("" if engine == "processes" else said)
    assert _remark(engine, workers=1) == _remark(engine) == ""


def _remark(engine: str, **settings: Any) -> str:
    config = RunConfig.make({"data": "made", "model": "linear", **settings})
    made = make_engine(engine, prepare_setup(config, made_data((4, 4, 4))))
    made.close()
    return made.remark
