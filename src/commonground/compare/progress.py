"""What a comparison shows while it goes on: which method and seed, of how many, and the time left for all."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from commonground.compare.observer import Step
from commonground.engine import Observer
from commonground.engine.setup import Setup
from commonground.tasks import Headline
from commonground.terminal import moves

__all__ = ["LINE_EVERY", "ComparisonProgress", "Step", "duration"]

LINE_EVERY = 10.0  # seconds between lines where there is no terminal


class ComparisonProgress:
    """An observer that writes to standard error: a bar on a terminal, plain lines elsewhere.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._steps: Sequence[Step] = ()
        self._pace: dict[str, tuple[float, int]] = {}  # seconds and rounds spent on a method so far

    def plan(self, steps: Sequence[Step]) -> None:
        """See :class:`~commonground.compare.observer.ComparisonObserver`."""
        self._steps = steps

    def step(self, step: Step) -> Observer | None:
        """See :class:`~commonground.compare.observer.ComparisonObserver`."""
        return None if self._quiet else _StepProgress(self, step)

    def note(self, text: str) -> None:
        """See :class:`~commonground.compare.observer.ComparisonObserver`."""
        if not self._quiet:
            self._console.print(text, markup=False, soft_wrap=True)

    def spent(self, step: Step, seconds: float, rounds: int) -> None:
        """Remember how long a method takes."""
        before = self._pace.get(step.title, (0.0, 0))
        self._pace[step.title] = (before[0] + seconds, before[1] + rounds)

    def left(self, step: Step, rounds: int) -> float:
        """Seconds left for all runs, ``rounds`` being left of this one."""
        done = sum(rounds for _, rounds in self._pace.values())
        general = sum(seconds for seconds, _ in self._pace.values()) / max(done, 1)

        def pace(title: str) -> float:
            spent, over = self._pace.get(title, (general, 1))
            return spent / max(over, 1)

        later = [other for other in self._steps if other.number > step.number]
        return rounds * pace(step.title) + sum(other.rounds * pace(other.title) for other in later)


class _StepProgress:
    """Hears of one run."""

    def __init__(self, whole: ComparisonProgress, step: Step) -> None:
        self._whole, self._step = whole, step
        self._console = whole._console
        self._bar: Progress | None = None
        self._done = 0
        self._state = ""
        self._last = self._printed = time.perf_counter()

    def begin(self, setup: Setup, engine: str, done: int) -> None:
        self._done, self._headline = done, Headline.of(setup.data.task)
        self._kind = setup.kind_of_model
        self._last = self._printed = time.perf_counter()
        if done:
            self._whole.note(f"{self._step.text}: continuing after round {done}")
        if moves(self._console):
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._step.text, total=self._step.rounds, completed=done, state="")

    def round(self, row: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        self._whole.spent(self._step, now - self._last, row["round"] - self._done)
        self._last, self._done = now, row["round"]
        left = duration(self._whole.left(self._step, self._step.rounds - self._done))
        headline = self._headline
        own = row[headline.personal]
        if own is not None:
            part = "validation" if self._step.candidate is not None else "test"
            self._state = f"{self._kind} {part} {headline.name} {headline.show(own)}"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, state=f"{self._state}  {left} left in all")
        elif now - self._printed > LINE_EVERY and self._done < self._step.rounds:
            self._printed = now
            print(
                f"{self._step.text}: round {self._done}/{self._step.rounds}  {self._state}  {left} left in all",
                file=sys.stderr,
                flush=True,
            )

    def note(self, text: str) -> None:
        if text.startswith("the run in"):
            self._whole.note(f"{self._step.text}: {text}")
        elif text.startswith("fine-tuning"):
            self._state += " before fine-tuning"

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._done == self._step.rounds:
            after = (
                f"; {duration(self._whole.left(self._step, 0))} left in all"
                if self._step.number < self._step.total
                else ""
            )
            self._whole.note(f"{self._step.text}: done, {self._state}{after}")


def duration(seconds: float) -> str:
    """Of a rest of work, in a unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
