"""What is seen of a run on a deployment while it goes on: its log, its rounds, and how it ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from commonground.engine.state.folder import RunFolder
from commonground.errors import Interrupted, RunError
from commonground.network.deploy import Deployment
from commonground.network.server_app import FAILED, LOG, Job, outcome_of

__all__ = ["follow"]

SILENT = 15.0  # seconds without a line or a round after which Flower is asked whether the run goes on
PAUSE = 0.3  # seconds between two looks at a run
STOPPED = "finished:stopped"
"""What Flower says of a run that somebody has stopped."""


def follow(deployment: Deployment, job: Job, name: str, run: int, hear: Callable[[str, Any], None]) -> None:
    """Hear of a run until it is over.

    Args:
        deployment: that runs it.
        job: what is done.
        name: the job's.
        run: Flower's number of it.
        hear: gets ``("note", text)`` and ``("round", row)``.

    Raises:
        RunError: it failed; the server's own words.
        Interrupted: somebody has stopped it.
    """
    out, outcome_file = Path(job.out), outcome_of(deployment.job_file(name))
    lines, rows = _new_lines(out / LOG), _new_rows(out / "rounds.jsonl", job.resume)
    asked = time.monotonic()
    while True:
        outcome = _outcome(outcome_file)
        said, done = next(lines), next(rows)
        for text in said:
            if not text.startswith(FAILED):  # which is raised
                hear("note", text)
        for row in done:
            hear("round", row)
        if said or done:
            asked = time.monotonic()  # it is under way; the server's own command takes seconds to say so
        if outcome is not None and outcome["error"] is None:
            return
        if outcome is not None or time.monotonic() - asked > SILENT:
            asked, why = time.monotonic(), None if outcome is None else f"the server says: {outcome['error']}"
            try:
                state = deployment.state_of(run)
            except RunError as error:
                raise RunError(why or f"{error} and {_go_on(out)}") from None
            if state == STOPPED:  # of which its process says that it has lost its server
                raise Interrupted(stopped(run, out))
            if why is not None:
                raise RunError(why)
            if state.startswith("finished") and _outcome(outcome_file) is None:
                raise RunError(f"the run {run} is {state}, and {_what_then(out)}")
        time.sleep(PAUSE)


def _new_lines(path: Path) -> Iterator[list[str]]:
    """Whole lines that were written since the last look; of a file that was there before, only those from now on."""
    at = path.stat().st_size if path.is_file() else 0
    while True:
        found: list[str] = []
        if path.is_file():
            with path.open("rb") as file:
                at = min(at, path.stat().st_size)
                file.seek(at)
                rest = file.read()
            whole = rest[: rest.rfind(b"\n") + 1]
            at += len(whole)
            found = whole.decode("utf-8", "replace").splitlines()
        yield found


def _new_rows(path: Path, resumed: bool) -> Iterator[list[dict[str, Any]]]:
    """Rows of rounds that were done since the last look.

    A run that is continued writes the file anew and then adds to it: a row is new by its round, wherever it stands.

    Args:
        path: of the rows, one a line.
        resumed: whether those that are there at the first look are known already.
    """
    at, last, told = 0, b"", 0  # the end of the last line that could be read, that line, and the last round
    while True:
        found: list[dict[str, Any]] = []
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(at - len(last))
            if file.read(len(last)) != last:  # written anew
                at, last = file.seek(0), b""
            end = at
            for line in file:
                end += len(line)
                # What cannot be read is read again at the next look, unless there is more after it.
                if line.endswith(b"\n") and (row := _row(line)) is not None:
                    at, last = end, line
                    if row["round"] > told:
                        told = row["round"]
                        found.append(row)
        yield [] if resumed else found
        resumed = False


def _row(line: bytes) -> dict[str, Any] | None:
    """The row in a line; None if there is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("round"), int) else None


def _outcome(path: Path) -> dict[str, Any] | None:
    """How a job has ended, if it has."""
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):
        return None


def _what_then(out: Path) -> str:
    """What is said of a run that has ended without a word of its own."""
    log = "`commonground deploy server` has shown why"
    return f"{log}; continue it with --resume" if RunFolder(out).exists else f"has begun nothing: {log}"


def _go_on(out: Path) -> str:
    """How a run that has ended before its time goes on."""
    if RunFolder(out).exists:
        return "continue the run with --resume"
    return "the run as well, without --resume: nothing of it was trained yet"


def stopped(run: int, out: Path) -> str:
    """What is said of a run that was stopped."""
    if RunFolder(out).exists:
        return f"the run {run} was stopped; go on with it with --resume"
    return f"the run {run} was stopped before its first round; start it again"
