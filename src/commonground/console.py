"""What a run shows while it goes on: a progress bar on a terminal, plain lines elsewhere; and its result as a table."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from commonground.counted import counted
from commonground.data.tables.schema import one_sided
from commonground.engine.run import Run
from commonground.engine.setup import Setup
from commonground.privacy import about_privacy
from commonground.quoting import visible
from commonground.tasks import Headline, Metric, about_balance, special_clients, tested_clients
from commonground.tasks.rank import is_share
from commonground.terminal import human_bytes, moves

__all__ = ["ConsoleProgress", "result_note", "result_table"]

PLAIN_LINES = 15  # about so many lines of progress where there is no terminal


def _split(setup: Setup) -> str:
    """What is head and what is body, and whether the body goes on behind the head, as no paper has it."""

    def told(group: str) -> str:
        names = setup.groups.names(group)
        layers = dict.fromkeys(name.rpartition(".")[0] or name for name in names)
        count = sum(setup.initial[name].numel() for name in names)
        return f"{group}: {', '.join(layers) or 'nothing'} ({count:,} weights)"

    order = setup.groups.names(("head", "body"))
    head = set(setup.groups.names("head"))
    last = max((place for place, name in enumerate(order) if name in head), default=len(order))
    behind = dict.fromkeys(name.rpartition(".")[0] or name for name in order[last + 1 :])
    warning = f"; the body goes on behind the head ({', '.join(behind)}), which is rarely meant" if behind else ""
    return f"{told('head')}; {told('body')}{warning}"


class ConsoleProgress:
    """An observer that writes to standard error.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._began = time.perf_counter()
        self._first = 0

    def begin(self, setup: Setup, engine: str, done: int) -> None:
        """See :class:`~commonground.engine.Observer`."""
        self._rounds = setup.config.rounds
        self._headline, self._kind = Headline.of(setup.data.task), setup.kind_of_model
        self._rank = Metric(setup.rank.key, is_share(setup.rank.key))
        self._no_loss = "no training" if setup.config.dp is None else "no finite loss"
        self._began, self._first = time.perf_counter(), done
        if self._quiet:
            return
        title = setup.algorithm.title
        again = f", continuing after round {done}" if done else ""
        self.note(
            f"{title} on {setup.data.describe()}; model {setup.config.model} "
            f"({sum(v.numel() for v in setup.initial.values()):,} weights), "
            f"{setup.config.optimizer} at lr {setup.config.lr:g}, engine {engine}{again}"
        )
        if setup.config.head is not None or setup.config.body is not None:
            self.note(_split(setup))
        if moves(self._console):
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
        loss = row["train_loss"]
        state = self._no_loss if loss is None else f"loss {loss:.4f}" if loss < 1e5 else f"loss {loss:.4g}"
        headline = self._headline
        if row[headline.personal] is not None:
            state += f"  {self._kind} {headline.name} {headline.show(row[headline.personal])}"
            if self._kind == "personal" and row[headline.shared] is not None:
                state += f", global {headline.show(row[headline.shared])}"
        rank = self._rank
        if row.get(f"validation_{rank.key}") is not None:
            what = "" if rank.key == headline.key else f"{rank.name} "
            state += f"  validation {what}{rank.show(row[f'validation_{rank.key}'])}"
        done = row["round"]
        if self._bar is not None:
            self._bar.update(self._task, completed=done, state=state)
        elif done % math.ceil(self._rounds / PLAIN_LINES) == 0 or done in (1, self._rounds):
            spent = time.perf_counter() - self._began
            left = spent / (done - self._first) * (self._rounds - done)
            self.note(f"round {done}/{self._rounds}  {state}  {left:.0f} s left")

    def note(self, text: str) -> None:
        """See :class:`~commonground.engine.Observer`."""
        if self._quiet:
            return
        try:
            print(visible(text), file=sys.stderr, flush=True)
        except BrokenPipeError:
            self._quiet = True  # nobody reads on; the run is not to end for that

    def end(self) -> None:
        """See :class:`~commonground.engine.Observer`."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def result_table(run: Run) -> Table:
    """A finished run's headline figures."""
    s, headline = run.summary, Headline.of(run.summary)
    own, show = s[headline.personal], headline.show
    table = Table(title=f"{s['algorithm']} on {s['data']}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row(
        f"personal {headline.name}",
        f"{show(own['mean'])} mean over {tested_clients(s)} (std {show(own['std'])}, "
        f"{headline.percentile} {show(own[headline.worst_tenth])}, worst {show(own[headline.worst])})",
    )
    for clause in special_clients(s):
        table.add_row("", Text(clause))
    ends = s["worst_tenth"]
    if ends["min_rows"] > 1:
        many = f"{ends['clients']:,} of {tested_clients(s)}, with at least {ends['min_rows']} test rows"
        table.add_row("", f"{headline.percentile} and worst are of {many}")
    _add_over_rows(table, headline, own["mean"], s["metrics"])
    table.add_row("", f"of {s[f'{headline.personal}_of']}")
    others = headline.others(s)
    if others:
        means, whole = (_listed(others, s["metrics"], part) for part in ("mean", "over_rows"))
        table.add_row("other metrics", f"{means}, means over clients")
        if whole != means:
            table.add_row("", f"{whole} over all rows")
    if s["rounds"] >= 10:
        table.add_row("last 10 rounds", show(own["last10"]))
    shared = s[headline.shared]
    if shared is not None:
        table.add_row(f"global {headline.name}", show(shared))
        _add_over_rows(table, headline, shared, s["global_metrics"])
    few = s.get("table", {}).get("few_rows", {})
    if few.get("clients"):
        became = {"pool": "one client of them all", "shared": "left to the global model", "drop": "left out",
                  "keep": "as all others"}  # fmt: skip
        whose = f"{counted(few['clients'], 'client')} with fewer than {few['min_rows']}{one_sided(few)}"
        table.add_row("few rows", f"{whose}: {became[few['how']]}")
    early = s.get("early_stopping")
    if early is not None:
        rank = Headline.ranking(s)
        table.add_row(
            "early stopping",
            f"round {early['best_round']} of {s['rounds']} is kept "
            f"(validation {rank.name} {rank.show(early['value'])})",
        )
    if privacy := s.get("privacy"):
        table.add_row("privacy", about_privacy(privacy))
        table.add_row("", f"not covered: {privacy['not_covered']}")
    table.add_row("sent by clients", human_bytes(s["bytes_up"]))
    table.add_row("sent by server", human_bytes(s["bytes_down"]))
    table.add_row("time", f"{s['seconds']:.1f} s for {counted(s['rounds'], 'round')}, engine {s['engine']}")
    table.add_row("weights sha256", s["weights_sha256"])
    if run.folder is not None:
        table.add_row("files", str(run.folder))
    return table


def result_note(run: Run) -> str:
    """Sentences for below the table: on unbalanced classes, on clients with few test samples among the worst."""
    headline, least = Headline.of(run.summary), run.summary["worst_tenth"]["min_rows"]
    few = headline.few_tests(run.clients.numbers(headline.personal), run.clients.numbers("test_samples"), least)
    return "\n".join(filter(None, (about_balance(run.summary), few)))


def _add_over_rows(table: Table, headline: Headline, mean: float | None, metrics: Mapping[str, Any]) -> None:
    """The headline metric over all clients' samples as one set, where that is another number than their mean."""
    whole = headline.show(metrics[headline.key]["over_rows"])
    if whole != headline.show(mean):
        table.add_row("", f"{whole} over all rows")


def _listed(metrics: Sequence[Metric], values: Mapping[str, Any], part: str) -> str:
    def told(metric: Metric) -> str:
        figures = values[metric.key]
        off = figures.get("over_rows_within") if part == "over_rows" else None
        return f"{metric.name} {metric.show(figures[part])}{f' (to {metric.bound(off)})' if off else ''}"

    return ", ".join(map(told, metrics))
