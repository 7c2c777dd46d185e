"""What a run shows while it goes on: a progress bar on a terminal, plain lines elsewhere; and its result as a table."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from commonground.engine.run import Run
from commonground.engine.setup import Setup

__all__ = ["ConsoleProgress", "human_bytes", "percent", "result_table", "standard_output"]

PLAIN_LINES = 15  # about so many lines of progress where there is no terminal


def standard_output() -> Console:
    """Where results are printed: as wide as the terminal, or 110 columns in a file or a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 110)


class ConsoleProgress:
    """An observer that writes to standard error.

    Args:
        quiet: show nothing.
        label: put before every line (for several runs after one another).
    """

    def __init__(self, quiet: bool = False, label: str = "") -> None:
        self._quiet = quiet
        self._label = label
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._began = time.perf_counter()
        self._first = 0

    def begin(self, setup: Setup, engine: str, done: int) -> None:
        """See :class:`~commonground.engine.Observer`."""
        self._rounds = setup.config.rounds
        self._began, self._first = time.perf_counter(), done
        if self._quiet:
            return
        title = self._label or setup.algorithm.title
        if not self._label:
            again = f", continuing after round {done}" if done else ""
            self.note(
                f"{title} on {setup.data.describe()}; model {setup.config.model} "
                f"({sum(v.numel() for v in setup.initial.values()):,} weights), lr {setup.config.lr:g}, engine {engine}"
                f"{again}"
            )
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn(f"{title:<12}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task("rounds", total=self._rounds, completed=done, state="")

    def round(self, row: Mapping[str, Any]) -> None:
        """See :class:`~commonground.engine.Observer`."""
        if self._quiet:
            return
        state = "no training" if row["train_loss"] is None else f"loss {row['train_loss']:.4f}"
        if row["personal_accuracy"] is not None:
            kind = "global" if row["global_accuracy"] is not None else "personal"
            state += f"  {kind} accuracy {percent(row['personal_accuracy'])}"
        done = row["round"]
        if self._bar is not None:
            self._bar.update(self._task, completed=done, state=state)
        elif done % math.ceil(self._rounds / PLAIN_LINES) == 0 or done in (1, self._rounds):
            spent = time.perf_counter() - self._began
            left = spent / (done - self._first) * (self._rounds - done)
            label = f"{self._label}  " if self._label else ""
            self.note(f"{label}round {done}/{self._rounds}  {state}  {left:.0f} s left")

    def note(self, text: str) -> None:
        """See :class:`~commonground.engine.Observer`."""
        if self._quiet:
            return
        try:
            print(text, file=sys.stderr, flush=True)
        except BrokenPipeError:
            self._quiet = True  # nobody reads on; the run is not to end for that

    def end(self) -> None:
        """See :class:`~commonground.engine.Observer`."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def percent(value: float | None, digits: int = 1) -> str:
    """A share as percent; a dash where there is none."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def human_bytes(count: float) -> str:
    """Bytes in a unit that reads well."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def result_table(run: Run) -> Table:
    """A finished run's headline figures."""
    s, accuracy = run.summary, run.summary["personal_accuracy"]
    table = Table(title=f"{s['algorithm']} on {s['data']}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row(
        "personal accuracy",
        f"{percent(accuracy['mean'])} mean over {s['clients']:,} clients (std {percent(accuracy['std'])}, "
        f"10th percentile {percent(accuracy['p10'])}, worst {percent(accuracy['min'])})",
    )
    table.add_row("", f"of {s['personal_accuracy_of']}")
    if s["rounds"] >= 10:
        table.add_row("last 10 rounds", percent(accuracy["last10"]))
    if s["global_accuracy"] is not None:
        table.add_row("global accuracy", percent(s["global_accuracy"]))
    table.add_row("sent by clients", human_bytes(s["bytes_up"]))
    table.add_row("sent by server", human_bytes(s["bytes_down"]))
    table.add_row("time", f"{s['seconds']:.1f} s for {s['rounds']} rounds, engine {s['engine']}")
    table.add_row("weights sha256", s["weights_sha256"])
    if run.folder is not None:
        table.add_row("files", str(run.folder))
    return table
