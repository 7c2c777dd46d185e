"""Programs of a model run under limits: what passes, what fails, what is stopped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from commonground.errors import ConfigError
from commonground.papers.rolora.code_execution import Limits, run_program

QUICK = Limits(seconds=1, memory=1 << 28)


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("def f(x):\n    return x + 1\n\nassert f(1) == 2", "passed"),
        ("assert 1 == 2", "failed"),
        ("def f(:", "failed"),
        ("import sys\nsys.exit(0)\nassert False", "failed"),  # leaving early is no pass
        ("import os\nos._exit(0)", "failed"),
        ("while True:\n    pass", "out of time"),
        ("import time\ntime.sleep(60)", "out of time"),
        ("x = bytearray(1 << 30)", "out of memory"),
        ("open('big', 'wb').write(b'0' * (1 << 22))", "failed"),
        ("import numpy", "failed"),  # no packages but Python's own
    ],
)
def test_a_verdict(program: str, verdict: str) -> None:
    began = time.perf_counter()
    assert run_program(program, QUICK) == verdict
    assert time.perf_counter() - began < 20


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time, pathlib\ntime.sleep(3)\npathlib.Path({str(mark)!r}).touch()"
    program = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])"
    assert run_program(program, QUICK) == "passed"
    time.sleep(4)
    assert not mark.exists()  # what it started was ended with it


def test_the_program_runs_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_SECRET", "1")
    program = (
        "import os\nassert 'A_SECRET' not in os.environ\nopen('file', 'w').write('x')\nassert os.listdir() == ['file']"
    )
    assert run_program(program, QUICK) == "passed"
    assert list(tmp_path.iterdir()) == []


def test_limits_that_are_none() -> None:
    with pytest.raises(ConfigError, match="0 s and"):
        Limits(seconds=0)
