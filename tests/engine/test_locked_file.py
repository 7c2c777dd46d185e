"""A file that stands for something: one holder at a time, whoever removes and makes it meanwhile."""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from pathlib import Path

import pytest

from commonground.engine.state.lock import locked_file
from commonground.errors import BusyError, RunError


def _holds(path: Path, inside: Path, count: int, wait: bool) -> None:
    held = 0
    while held < count:
        try:
            with locked_file(path, wait=wait):
                os.mkdir(inside)  # fails while another one is in here
                time.sleep(0.001)
                os.rmdir(inside)
                held += 1
        except BusyError:
            continue


@pytest.mark.parametrize("wait", [True, False])
def test_one_at_a_time(tmp_path: Path, wait: bool) -> None:
    path, inside = tmp_path / "a" / ".lock", tmp_path / "inside"
    many = [mp.get_context("spawn").Process(target=_holds, args=(path, inside, 50, wait)) for _ in range(3)]
    for one in many:
        one.start()
    for one in many:
        one.join()
    assert [one.exitcode for one in many] == [0, 0, 0]
    assert not path.exists()


def test_who_is_refused_leaves_it_to_its_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked_file(path):
        for _ in range(2):
            with pytest.raises(BusyError, match="another process has"), locked_file(path):
                pass
        assert path.exists()


def test_what_was_left_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text("")
    with locked_file(path):
        assert path.exists()
    assert not path.exists()


def test_without_locks_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with locked_file(tmp_path / ".lock"), locked_file(tmp_path / ".lock"):
        pass


def test_a_place_that_cannot_be_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"), locked_file(tmp_path / "file" / ".lock"):
        pass
