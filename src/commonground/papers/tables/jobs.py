"""A table's missing runs trained by several processes of this machine, side by side.

Each goes through the same list and takes what nobody has yet, as commands do that fill one folder together; each has a
share of the cores, so that they do not wait for each other. A process stops after its round when its pipe to this one
says so or is closed, so none outlives this one by more than a round.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from commonground.compare.observer import Step
from commonground.engine.backends.processes import STOPS, default_workers, stops_held_back
from commonground.engine.observer import Silent
from commonground.engine.setup import Setup
from commonground.errors import CommonGroundError, RunError
from commonground.papers.request import Request
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.fill import Filled, Going, Work, fill, missing_of, remarks_on, train_missing
from commonground.papers.tables.jobs_progress import JobsProgress
from commonground.papers.tables.table import PaperTable

__all__ = ["fill_side_by_side"]

LOOK = 0.5  # seconds between two looks at the time


def fill_side_by_side(
    table: PaperTable, work: Sequence[Work], store: CellStore, request: Request, going: Going | None = None
) -> tuple[list[str], bool]:
    """As :func:`~commonground.papers.tables.fill.fill`, by as many processes as are asked for.

    Raises:
        RunError: a process was ended from outside; the others have done what was left to them.
        CommonGroundError: what a process met; likewise.
    """
    missing = missing_of(work, store)
    count = min(request.jobs, len(missing))
    if count <= 1:
        return fill(table, work, store, request, going)
    with JobsProgress(missing, request.quiet) as progress:
        jobs = _Jobs.begun(table, missing, request, count)
        try:
            jobs.listen(progress, going)
        except KeyboardInterrupt:
            progress.note("stopping after the rounds that are going on; once more ends them at once")
            with jobs.ended_at_once():
                jobs.stop(progress)
                jobs.listen(progress, None)
            raise
    jobs.check()
    notes = list(dict.fromkeys(note for filled in jobs.filled for note in filled.notes))
    if not all(filled.done for filled in jobs.filled):
        return notes, False
    others = [one for filled in jobs.filled for one in filled.left]
    return notes + remarks_on(work, [one for one in missing if one in others], store, request), True


@dataclass
class _Jobs:
    """The processes, by the pipes to those that are still at work.

    Attributes:
        open: the processes by their pipes.
        filled: what those that are ready have done.
        failed: what went wrong.
    """

    open: dict[Connection, SpawnProcess] = field(default_factory=dict)
    filled: list[Filled] = field(default_factory=list)
    failed: list[CommonGroundError] = field(default_factory=list)

    @classmethod
    def begun(cls, table: PaperTable, work: Sequence[Work], request: Request, count: int) -> _Jobs:
        """So many processes, each with a share of the cores."""
        # Not forked: this process may have used a GPU, and has threads.
        spawn, jobs = get_context("spawn"), cls()
        for cores in _shares(count):
            jobs._begin(spawn, table, work, request, cores)
        return jobs

    def _begin(
        self, spawn: SpawnContext, table: PaperTable, work: Sequence[Work], request: Request, cores: Sequence[int]
    ) -> None:
        here, there = spawn.Pipe()
        process = spawn.Process(target=_job, args=(table, list(work), request, cores, there))
        with stops_held_back():
            process.start()
        there.close()  # so that its end is the pipe's
        self.open[here] = process

    def listen(self, progress: JobsProgress, going: Going | None) -> None:
        """Hear what the processes say until all have ended; stop them when time is up."""
        stopped = False
        while self.open:
            for pipe in wait(list(self.open), timeout=LOOK):
                self._hear(pipe, progress)  # type: ignore[arg-type]
            if not stopped and going is not None and not going():
                self.stop(progress)
                stopped = True

    def _hear(self, pipe: Connection, progress: JobsProgress) -> None:
        try:
            said = pipe.recv()
        except (EOFError, ConnectionError):
            self._close(pipe)
            return
        if isinstance(said, Filled):
            self.filled.append(said)
        elif isinstance(said, CommonGroundError):
            self.failed.append(said)
        else:
            progress.told(*said)

    def _close(self, pipe: Connection) -> None:
        process = self.open.pop(pipe)
        pipe.close()
        process.join()
        if process.exitcode:
            how = f"exit code {process.exitcode}" if process.exitcode > 0 else f"signal {-process.exitcode}"
            self.failed.append(
                RunError(
                    f"a process of --jobs was ended ({how}); the same command goes on where it was, with fewer jobs "
                    "if memory did not suffice"
                )
            )

    def stop(self, progress: JobsProgress) -> None:
        """Ask all to stop after their rounds."""
        progress.stop()
        for pipe in self.open:
            with suppress(OSError):
                pipe.send(None)

    @contextmanager
    def ended_at_once(self) -> Iterator[None]:
        """While open, an interruption ends the processes where they are."""
        try:
            yield
        except KeyboardInterrupt:
            for process in self.open.values():
                process.terminate()
            raise

    def check(self) -> None:
        """Raise what went wrong."""
        if self.failed:
            raise self.failed[0]


def _shares(count: int) -> list[list[int]]:
    """The cores of each process; none to keep to where a system does not tell them."""
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(count)]
    cores = sorted(os.sched_getaffinity(0))
    return [cores[n::count] or [cores[n % len(cores)]] for n in range(count)]


# -- in a process of its own --------------------------------------------------------------------------------------


def _job(table: PaperTable, work: list[Work], request: Request, cores: Sequence[int], pipe: Connection) -> None:
    """Train what nobody has yet, and tell of it."""
    if cores:
        os.sched_setaffinity(0, cores)
    else:
        request = replace(request, workers=max(1, default_workers() // request.jobs))
    said: object = Filled([], [], False)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        store = CellStore(request.folder)
        said = train_missing(table, work, store, request, lambda: not pipe.poll(), _Teller(pipe))
    except CommonGroundError as error:
        said = error
    except KeyboardInterrupt:  # the run is kept for the next time
        pass
    with suppress(OSError):  # nobody listens any more
        pipe.send(said)


class _Teller:
    """Tells of rounds by a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def plan(self, steps: Sequence[Step]) -> None:
        """See :class:`~commonground.compare.observer.ComparisonObserver`."""

    def step(self, step: Step) -> _RunTeller:
        """See :class:`~commonground.compare.observer.ComparisonObserver`."""
        return _RunTeller(self._pipe, step)

    def note(self, text: str) -> None:
        """See :class:`~commonground.compare.observer.ComparisonObserver`."""


class _RunTeller(Silent):
    """Of one run."""

    def __init__(self, pipe: Connection, step: Step) -> None:
        self._pipe, self._run, self._done = pipe, (step.title, step.seed), 0

    def begin(self, setup: Setup, engine: str, done: int) -> None:
        """See :class:`~commonground.engine.Observer`."""
        self._done = done
        self._tell()

    def round(self, row: Mapping[str, Any]) -> None:
        """See :class:`~commonground.engine.Observer`."""
        self._done = int(row["round"])
        self._tell()

    def end(self) -> None:
        """See :class:`~commonground.engine.Observer`."""
        self._tell(ended=True)

    def _tell(self, ended: bool = False) -> None:
        with suppress(OSError):  # nobody listens any more
            self._pipe.send((self._run, self._done, ended))
