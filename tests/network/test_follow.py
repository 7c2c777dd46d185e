"""What somebody hears who looks on while a server trains, also of a run that is continued."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from commonground.engine.state.round_lines import RoundLines
from commonground.errors import RunError
from commonground.network.deploy import Deployment
from commonground.network.following import follow
from commonground.network.holder import Holder
from commonground.network.limits import Limits
from commonground.network.server_app import LOG, Job, _carry_out, outcome_of


def rows(first: int, last: int, **more: Any) -> list[dict[str, Any]]:
    return [{"round": round, "train_loss": 1 / round, **more} for round in range(first, last + 1)]


def write(path: Path, kept: list[dict[str, Any]], added: Sequence[dict[str, Any]] = ()) -> None:
    """As a run does."""
    lines = RoundLines(path)
    lines.replace(kept)
    for row in added:
        lines.add(row)


class Server(Deployment):
    """One whose run does something between two looks, and has ended when there is nothing left."""

    def __init__(self, folder: Path, *happens: Any) -> None:
        super().__init__(folder)
        self.happens = [*happens, lambda: self.tell(None)]
        self.state = "running"

    def tell(self, error: str | None) -> None:
        self.job_file("a.json").parent.mkdir(exist_ok=True)
        outcome_of(self.job_file("a.json")).write_text(json.dumps({"error": error}))

    def state_of(self, run: int) -> str:
        return self.state

    def followed(self, monkeypatch: pytest.MonkeyPatch, resume: bool = False) -> list[int]:
        """Rounds that were told."""
        heard: list[tuple[str, Any]] = []
        with monkeypatch.context() as patched:
            patched.setattr("commonground.network.following.time.sleep", lambda seconds: self.happens.pop(0)())
            job = Job(settings={}, clients=1, wait=1, limits=Limits(), out=str(self.folder / "run"), resume=resume)
            follow(self, job, "a.json", 7, lambda kind, told: heard.append((kind, told)))
        assert {kind for kind, _ in heard} <= {"round"}
        return [row["round"] for _, row in heard]


def test_why_a_run_failed_is_in_its_log_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For whoever did not look on."""

    def fail(*_: Any) -> None:
        raise RunError("client 'north' offers no column 'extra'")

    monkeypatch.setattr("commonground.network.server_app._train", fail)
    out = tmp_path / "run"
    job = Job(settings={}, clients=1, wait=1, limits=Limits(), out=str(out))
    with pytest.raises(RunError, match="offers no column"):
        _carry_out(Any, job, Holder(run=1, server=tmp_path))  # type: ignore[arg-type]
    assert (out / LOG).read_text() == "failed: client 'north' offers no column 'extra'\n"

    def write() -> None:
        (out / LOG).write_text("client 'north' is there\nfailed: it cannot\n")
        server.tell("it cannot")

    (out / LOG).unlink()
    server = Server(tmp_path, write)
    heard: list[Any] = []
    monkeypatch.setattr("commonground.network.following.time.sleep", lambda seconds: server.happens.pop(0)())
    with pytest.raises(RunError, match="the server says: it cannot"):
        follow(server, job, "a.json", 7, lambda kind, told: heard.append(told))
    assert heard == ["client 'north' is there"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "rounds.jsonl"


def test_a_continued_run_changes_what_was_there_and_adds_to_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last round was tested as the last one, which it is no more: the file gets shorter, and longer at once."""
    write(file, rows(1, 2) + rows(3, 3, personal_accuracy=0.123456789))
    server = Server(
        tmp_path,
        lambda: write(file, rows(1, 3), rows(4, 6)),
        lambda: RoundLines(file).add(rows(7, 7)[0]),
    )
    assert server.followed(monkeypatch, resume=True) == [4, 5, 6, 7]


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_lines_after_the_checkpoint_are_cut_off(
    kept: int, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, rows(1, 3, a="first"))
    server = Server(
        tmp_path,
        lambda: write(file, rows(1, kept, a="first")),
        lambda: write(file, rows(1, kept, a="first"), rows(kept + 1, 4, a="again")),
        lambda: RoundLines(file).add(rows(5, 5)[0]),
    )
    assert server.followed(monkeypatch, resume=True) == [4, 5]


def test_of_a_new_run_all_rounds_are_told_once(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, rows(1, 2))  # before anybody looked
    server = Server(tmp_path, lambda: None, lambda: write(file, rows(1, 2), rows(3, 4)))
    assert server.followed(monkeypatch) == [1, 2, 3, 4]


def test_a_line_is_told_when_it_is_whole(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps(rows(1, 1)[0]) + "\n"

    def add(text: str) -> None:
        with file.open("a") as opened:
            opened.write(text)

    server = Server(
        tmp_path,
        lambda: add(line[:9]),
        lambda: add(line[9:-1]),
        lambda: add("\n\0\0\0\n"),  # as a file system of a network may show what is on its way
        lambda: file.write_bytes(file.read_bytes().replace(b"\0\0\0", json.dumps(rows(2, 2)[0]).encode())),
        lambda: add("no row\n[3]\n" + json.dumps(rows(3, 3)[0]) + "\n"),
    )
    assert server.followed(monkeypatch) == [1, 2, 3]


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_says_nothing_is_looked_up_where_the_server_runs(
    begun: bool, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if begun:
        file.with_name("config.toml").touch()
    server = Server(tmp_path)
    server.state = "finished:failed"
    times = iter(range(0, 1000, 20))
    monkeypatch.setattr("commonground.network.following.time.monotonic", lambda: next(times))
    with pytest.raises(RunError) as raised:
        server.followed(monkeypatch)
    log = "`commonground deploy server` has shown why"
    then = f"{log}; continue it with --resume" if begun else f"has begun nothing: {log}"
    assert str(raised.value) == f"the run 7 is finished:failed, and {then}"
