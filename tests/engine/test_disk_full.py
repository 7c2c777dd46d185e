"""A disk that is full, at any moment: one sentence, nothing half written, and the last good checkpoint as it was."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from commonground.engine.state import changed
from commonground.engine.state.checkpoint import Checkpoint, CheckpointFolder
from commonground.engine.state.files import write_atomically
from commonground.engine.state.folder import RunFolder
from commonground.engine.state.store import PersonalStore
from commonground.errors import RunError
from tests.helpers import SMALL, Whole, made_data, train_whole, training

SETTINGS: dict[str, Any] = SMALL | {"rounds": 8, "participation": 0.5, "model": "mlp", "model_options": {"hidden": [5]}}


def go(out: Path | None, algorithm: str = "ditto", **changes: Any) -> Whole:
    return train_whole(algorithm, made_data(), out=out, **(SETTINGS | changes))


def full_after(operations: int, name: str) -> Any:
    """``os.write`` or ``os.fsync`` fails from a number of calls on."""
    real: Callable[..., Any] = getattr(os, name)
    done = 0

    def limited(*args: Any) -> Any:
        nonlocal done
        done += 1
        if done > operations:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    return patch.object(os, name, limited)


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_file_that_does_not_fit_is_named(name: str, tmp_path: Path) -> None:
    """The system names none of a descriptor."""
    with full_after(0, name), pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(tmp_path / "a.json", "{}")
    assert caught.value.filename == str(tmp_path / "a.json")


@pytest.mark.parametrize("engine", ["serial", "messages"])
@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_full_disk_at_any_moment(name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is room again, the run goes on and ends with the same numbers."""
    monkeypatch.setattr(training.Keeper, "save_if_due", training.Keeper.save)
    whole = go(None, "fedrep", engine=engine)
    # Calls 0, 1, 2, … of a run of some 200; a run that was refused at its very beginning may be started again.
    for operations in (0, 1, 5, 12, 20, 33, 35, 37, 39, 41):
        folder = tmp_path / f"{operations}"
        with full_after(operations, name), pytest.raises(RunError, match="No space left on device") as caught:
            go(folder, "fedrep", engine=engine)
        assert "\n" not in str(caught.value)
        assert str(folder) in str(caught.value)
        assert not list(folder.rglob("*.part"))
        rows = RunFolder(folder).rounds.rows()
        kept = RunFolder(folder).load(rows=True)
        assert (kept.round if kept is not None else 0) <= len(rows)
        assert go(folder, "fedrep", engine=engine, resume=True).sha == whole.sha


def test_the_sentence_says_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.Keeper, "save_if_due", training.Keeper.save)
    match = r"the checkpoint of round 3 cannot be written to '.*': No space left .*; the one of round 2 is untouched"
    saved = CheckpointFolder.save

    def failing(self: CheckpointFolder, checkpoint: Checkpoint, name: str | None = None) -> Path:
        if checkpoint.round == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return saved(self, checkpoint, name)

    with patch.object(CheckpointFolder, "save", failing), pytest.raises(RunError, match=match):
        go(tmp_path)
    checkpoint = RunFolder(tmp_path).load(rows=True)
    assert checkpoint is not None
    assert checkpoint.round == 2


LIMITED = """
import resource, signal, sys
from pathlib import Path
from commonground.errors import RunError
from tests.engine.test_disk_full import go
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    go(Path(sys.argv[1]), model_options={"hidden": [400]}, rounds=3)
except RunError as error:
    print(error)
"""


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """The limit of the operating system on a file's size, as a full disk that nobody has made up."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "run"), "9000"]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, check=True, capture_output=True, text=True
    ).stdout
    assert said.startswith("the checkpoint of round ")
    assert said.endswith("File too large; there is none yet\n")
    assert not list((tmp_path / "run").rglob("*.part"))
    assert not RunFolder(tmp_path / "run").checkpoints.rounds()


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.rounds.add({"round": 1, "personal_accuracy": 0.5})
    before = (tmp_path / "rounds.jsonl").read_bytes()
    sha256 = folder.files["rounds.jsonl"]
    real = os.write
    with (
        patch.object(os, "write", lambda descriptor, content: real(descriptor, content[:5])),
        pytest.raises(RunError, match=r"rounds.jsonl' cannot be written: No space left on device"),
    ):
        folder.rounds.add({"round": 2, "personal_accuracy": 0.5})
    assert (tmp_path / "rounds.jsonl").read_bytes() == before
    assert folder.files["rounds.jsonl"] == sha256


def test_no_room_for_the_temporary_file() -> None:
    store = PersonalStore(3, {"w": torch.zeros(4)})
    refused = patch.object(os, "pwrite", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with (
        patch.object(changed, "MEMORY_BYTES", 0),
        refused,
        pytest.raises(RunError, match=r"the clients' state cannot be kept in '.*': No space left on device"),
    ):
        store.put(1, {"w": torch.ones(4)})
