"""Signals at moments at which no run waits for them, and to more than one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commonground import Run, compare
from commonground.engine import interrupt
from commonground.engine.finishing import finish
from commonground.engine.interrupt import StopFlag, more_runs
from commonground.engine.state.folder import RunFolder
from commonground.errors import Interrupted
from commonground.stopping import stops_raise

COMMAND = [sys.executable, "-m", "commonground"]


def _start(command: list[str]) -> subprocess.Popen[str]:
    """In a session of its own, whose processes a signal can be sent to all at once."""
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def _loaded(process: subprocess.Popen[str], library: str) -> bool:
    return library in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what a process has loaded is read in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("library", ["numpy", "libtorch"])
def test_a_signal_while_modules_are_loaded(library: str, number: signal.Signals) -> None:
    process = _start([*COMMAND, "train", "fedrep", "--quiet"])
    while not _loaded(process, library):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "commonground: interrupted\n")


def test_only_the_command_ends_so() -> None:
    """Who imports the library keeps Python's own handlers."""
    code = (
        "import signal, commonground; g = signal.getsignal; "
        "print(g(signal.SIGINT) is signal.default_int_handler, g(signal.SIGTERM) is signal.SIG_DFL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_sigterm_before_a_run_listens() -> None:
    with stops_raise(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_that_python_drops_comes_again() -> None:
    class Ending:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)
            for _ in range(3):
                pass  # here the handler raises, in a destructor

    def ends() -> None:
        made = Ending()
        del made
        time.sleep(20)

    with stops_raise(), pytest.raises(KeyboardInterrupt):
        ends()


def test_sigterm_to_all_processes_of_a_run(tmp_path: Path) -> None:
    """As systemd and Slurm end a job, twice at once as ``timeout`` does."""
    flags = ["--data", "digits", "--clients", "8", "--rounds", "3000", "--workers", "3", "--engine", "processes"]
    process = _start([*COMMAND, "train", "fedrep", *flags, "--quiet", "--out", str(tmp_path / "run")])
    rounds = tmp_path / "run" / "rounds.jsonl"
    while not rounds.is_file() or rounds.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "commonground: interrupted; continue with --resume\n")
    checkpoint = RunFolder(tmp_path / "run").load()
    assert checkpoint is not None
    assert checkpoint.round == len(RunFolder(tmp_path / "run").rounds.rows()) >= 3
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # no worker is left


def test_a_signal_after_a_runs_last_check_is_for_the_runs_to_come() -> None:
    with StopFlag():
        signal.raise_signal(signal.SIGINT)  # the run is done, and was the only one
    with more_runs(), pytest.raises(Interrupted):  # noqa: PT012, what ends with it is the run before
        with StopFlag():
            pass
        with StopFlag():
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_comparison_is_stopped_between_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a signal that comes when the first run has trained, and nothing of it looks for one any more."""

    def late(*given: Any) -> Run:
        signal.raise_signal(signal.SIGINT)
        return finish(*given)

    settings: dict[str, Any] = {"seeds": 1, "rounds": 1, "clients": 3, "local_only": False, "out": tmp_path / "out"}
    monkeypatch.setattr("commonground.engine.loop.finish", late)
    with pytest.raises(Interrupted):
        compare(["fedavg", "fedper"], **settings)
    assert [path.parent.parent.name for path in tmp_path.rglob("summary.json")] == ["fedavg"]
    monkeypatch.undo()
    compare(["fedavg", "fedper"], **settings)
    assert len([*tmp_path.rglob("summary.json")]) == 2


def test_a_second_signal_acts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopFlag() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # its echo
        with pytest.raises(Interrupted, match=r"^stopped$"):
            stop.check()
        monkeypatch.setattr(interrupt, "SAME", 0.0)
        with pytest.raises(Interrupted, match="at once"):
            signal.raise_signal(signal.SIGTERM)
