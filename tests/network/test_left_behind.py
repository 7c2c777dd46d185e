"""The process of a run whose server has died: it ends, and the next one waits until it has let go of the folder."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commonground.engine.state.lock import locked, wait_until_free
from commonground.errors import RunError

pytest.importorskip("flwr")

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
        wait_until_free(tmp_path, 30.0)
        with locked(tmp_path):
            pass


def test_but_not_for_ever(tmp_path: Path) -> None:
    with started(HOLD, str(tmp_path), "60.0") as said:
        assert said == "held"
        began = time.monotonic()
        wait_until_free(tmp_path, 0.5)
        assert 0.4 < time.monotonic() - began < 20
        with pytest.raises(RunError, match="another process is training"), locked(tmp_path):
            pass


ATTEND = """
import os, sys
from commonground.cli_deploy import _attended
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
