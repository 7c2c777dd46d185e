"""What is shown of a table's runs that are trained side by side."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from commonground.compare.progress import LINE_EVERY, duration
from commonground.counted import counted
from commonground.papers.tables.fill import Work
from commonground.terminal import moves

__all__ = ["JobsProgress"]

Run = tuple[str, int]
"""Title and seed."""


class JobsProgress:
    """Writes to standard error: a bar for all and one for each run on a terminal, plain lines elsewhere.

    Args:
        work: the runs.
        quiet: show nothing.
    """

    def __init__(self, work: Sequence[Work], quiet: bool) -> None:
        self._rounds = {(one.arm.title, one.seed): int(one.arm.settings["rounds"]) for one in work}
        self._done: dict[Run, int] = {}
        self._over: set[Run] = set()
        self._before = 0  # rounds that were there already
        self._stopping = False
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._bars: dict[Run, TaskID] = {}
        self._began = self._printed = time.perf_counter()

    def __enter__(self) -> JobsProgress:
        if not self._quiet and moves(self._console):
            columns = (
                TextColumn("{task.description}"),
                BarColumn(20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
            self._all = self._bar.add_task("all rounds", total=sum(self._rounds.values()), left="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str) -> None:
        """Say something."""
        if not self._quiet:
            self._console.print(text, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """Runs that end from now on may be kept for the next time."""
        self._stopping = True

    def told(self, run: Run, done: int, ended: bool) -> None:
        """A run has so many rounds now.

        Args:
            run: which.
            done: rounds.
            ended: there will be no more of them.
        """
        if run not in self._done:
            self._before += done
        self._done[run] = done
        if ended and (done == self._rounds[run] or not self._stopping):
            self._over.add(run)
            self._rounds[run] = done  # one that diverges has fewer than it was to have
            over = f"{len(self._over)} of {len(self._rounds)} runs"
            self.note(f"{run[0]}, seed {run[1]}: trained, {over}; {self._left()}")
        if self._bar is not None:
            self._draw(run)
        elif not self._quiet and time.perf_counter() - self._printed > LINE_EVERY:
            self._printed = time.perf_counter()
            going = counted(len(self._done) - len(self._over), "run")
            print(f"{going} side by side: {self._trained()}; {self._left()}", file=sys.stderr, flush=True)

    def _draw(self, run: Run) -> None:
        assert self._bar is not None
        if run not in self._bars:
            self._bars[run] = self._bar.add_task(f"{run[0]}, seed {run[1]}", total=self._rounds[run], left="")
        self._bar.update(self._bars[run], completed=self._done[run], visible=run not in self._over)
        done, rounds = sum(self._done.values()), sum(self._rounds.values())
        self._bar.update(self._all, completed=done, total=rounds, left=self._left())

    def _trained(self) -> str:
        return f"{sum(self._done.values()):,} of {sum(self._rounds.values()):,} rounds"

    def _left(self) -> str:
        """Time for what is left, at the pace so far."""
        done = sum(self._done.values())
        pace = (time.perf_counter() - self._began) / max(done - self._before, 1)
        return f"{duration(pace * (sum(self._rounds.values()) - done))} left in all"
