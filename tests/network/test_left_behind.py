"""The process of a run whose server has died: it ends, and the next one waits until it has let go of the folder."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.engine.state.lock import is_free, locked
from commonground.errors import BusyError, RunError
from commonground.network import Limits, Members, gather, running, train_over
from commonground.network.deploy import Deployment
from commonground.network.holder import HOLDER, Holder
from commonground.network.members import MEMBERS
from commonground.network.running import run_settings
from tests.helpers import made_data
from tests.network.town import Town

HOLD = """
import sys, time
from pathlib import Path
from commonground.engine.state.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""

START_AND_GO = """
import subprocess, sys
code = '''
import os
import time
from commonground.network.parent import end_with
end_with(os.getppid())
print("up", flush=True)
time.sleep(60)
'''
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.readline()
"""


def data_of() -> FederatedDataset:
    return made_data((12, 7, 10, 15), dtype=np.float32, client_names=[f"site {c}" for c in range(4)])


@contextmanager
def started(*arguments: str) -> Iterator[str]:
    """A Python process and the first line that it says; at the end it is killed."""
    command = [sys.executable, "-c", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.kill()


def test_a_folder_is_waited_for(tmp_path: Path) -> None:
    with started(HOLD, str(tmp_path), "1.0") as said:
        assert said == "held"
        assert not is_free(tmp_path)
        with locked(tmp_path, wait=30.0):
            pass
        assert is_free(tmp_path)


def test_but_not_for_ever(tmp_path: Path) -> None:
    with started(HOLD, str(tmp_path), "60.0") as said:
        assert said == "held"
        began = time.monotonic()
        with pytest.raises(BusyError, match="another process is training"), locked(tmp_path, wait=0.5):
            pass
        assert 0.4 < time.monotonic() - began < 20


def test_the_run_that_has_a_folder_is_named(tmp_path: Path) -> None:
    """To another job, which writes nothing there, and to whoever wants to start one."""
    out, first = tmp_path / "run", Holder(run=12, server=tmp_path / "server")
    says = rf"the run 12 has '{out}', .*: `commonground deploy stop 12 --folder {first.server}` ends it, or choose"
    with first.holding(out, 0.0):
        held = (out / HOLDER).read_bytes()
        with pytest.raises(BusyError, match=says), Holder(run=13, server=tmp_path).holding(out, 0.1):
            pass
        assert (out / HOLDER).read_bytes() == held
    with Holder(run=13, server=tmp_path).holding(out, 0.0):
        assert Holder.of(out) == Holder(run=13, server=tmp_path)


@pytest.mark.parametrize(("state", "busy"), [("running", True), ("starting", True), ("finished:stopped", False)])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_whose_run_goes_on_is_refused_at_once(
    state: str, busy: bool, resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose run was stopped may be had in a moment, for which the job waits."""
    monkeypatch.setattr(running, "LINGERS", 0.1)
    monkeypatch.setattr(Deployment, "state_of", lambda deployment, run: state if run == 12 else "unknown")
    out = tmp_path / "run"
    with Holder(run=12, server=tmp_path / "server").holding(out, 0.0):
        if busy:
            with pytest.raises(BusyError, match="commonground deploy stop 12 --folder"):
                run_settings({"algorithm": "fedavg"}, out, resume)
        else:
            running.check_idle(out, resume)
    running.check_idle(out, resume)


def test_a_folder_of_another_command_is_refused_at_once(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(BusyError, match="another process is training in"):
        run_settings({"algorithm": "fedavg"}, tmp_path, resume=False)


def test_members_are_written_by_who_has_the_folder(tmp_path: Path) -> None:
    """A second run on the same folder would make the first one's clients others than it asks."""
    town = Town(data_of(), tmp_path / "sites")
    members, out = gather(town, 4, 10), tmp_path / "run"
    config = RunConfig.make({"algorithm": "fedavg", "data": "arrays", "rounds": 1, "model": "mlp", "threads": 1})
    with locked(out), pytest.raises(BusyError):
        train_over(town, config, members, Limits(), out)
    assert not (out / MEMBERS).exists()
    train_over(town, config, members, Limits(), out)
    with pytest.raises(RunError, match="already holds a run"):
        train_over(town, config, gather(town, 4, 10), Limits(), out)
    assert Members.read(out / MEMBERS) == members


ATTEND = """
import os, sys
from commonground.cli.deploy import _attended
code = '''
import os, time
from commonground.network.parent import end_with
from commonground.network.superlink import ENDS_WITH
end_with(int(os.environ[ENDS_WITH]))
print(os.getpid(), flush=True)
time.sleep(60)
'''
_attended([sys.executable, "-c", code], dict(os.environ))
"""


@pytest.mark.parametrize("code", [START_AND_GO, ATTEND])
def test_a_process_ends_with_the_one_that_started_it(code: str) -> None:
    """A run's with its server, and Flower's server with the command that serves."""
    with started(code) as said:
        left = int(said)
        assert _lives(left)
    ends = time.monotonic() + 20
    while _lives(left) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not _lives(left)


def _lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and whose parent does not ask for it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
