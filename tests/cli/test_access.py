"""Files of another user: one sentence says whose they are and that this is why they cannot be read."""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commonground.access import reason
from commonground.cli import main

NOBODY = 65534


def _as_other_user(args: list[str], said: Path) -> None:
    """The command in a forked process: root becomes nobody, others cannot, and take a right from themselves instead."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with said.open("w") as file:
        sys.stdout = sys.stderr = file
        code = main(args)
    os._exit(code)


@pytest.fixture(scope="module")
def run() -> Iterator[Path]:
    """A finished run in a folder that every user can enter."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    made = ["--data", "digits", "--clients", "4", "--rounds", "2", "--engine", "serial", "--quiet"]
    assert main(["train", "fedrep", *made, "--out", str(place / "run")]) == 0
    np.save(place / "x.npy", np.zeros((2, 8, 8)))
    (place / "said").write_text("")
    (place / "said").chmod(0o666)
    # Once as ourselves: what is imported late is imported now, since another user may not read this Python.
    for command in _commands(place):
        assert main(command) == 0
    yield place
    shutil.rmtree(place)


def _commands(place: Path) -> list[list[str]]:
    run, out = str(place / "run"), str(place / "out")
    return [
        ["predict", run, "--client", "0", "--input", str(place / "x.npy")],
        ["adapt", run, "--shots", "2", "--repeats", "1", "--epochs", "1", "--quiet", "--out", out],
        ["report", run],
    ]


CLOSED = ("config.toml", "", "checkpoint", "checkpoint/round-*.safetensors")
CASES = [(command, closed) for command in range(3) for closed in CLOSED[: 2 if command == 2 else 4]]  # no report of it


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.parametrize(("command", "closed"), CASES)
def test_a_run_of_another_user(command: int, closed: str, run: Path) -> None:
    path = max((run / "run").glob(closed)) if closed else run / "run"  # the newest of two checkpoints
    before = path.stat().st_mode
    path.chmod((0o700 if path.is_dir() else 0o600) if os.geteuid() == 0 else 0)
    child = mp.get_context("fork").Process(target=_as_other_user, args=(_commands(run)[command], run / "said"))
    try:
        child.start()
        child.join(60)
    finally:
        path.chmod(before)
    said = (run / "said").read_text()
    assert child.exitcode == 2, said
    assert said.count("\n") == 1
    assert f"'{path}' belongs to user '" in said
    assert "may not " in said
    assert "Errno" not in said


def test_other_reasons_stay_as_they_are(tmp_path: Path) -> None:
    missing = tmp_path / "a" / "b"
    assert reason(FileNotFoundError(2, "No such file or directory"), missing) == "No such file or directory"
    assert (
        reason(ValueError("its tensors are not what was written"), tmp_path) == "its tensors are not what was written"
    )
