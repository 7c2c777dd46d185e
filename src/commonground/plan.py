"""What a run would do: its settings as they were resolved, sizes, messages, engine; nothing is trained or written."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from commonground.engine.backends.base import payload_bytes
from commonground.engine.backends.factory import choose_engine
from commonground.engine.evaluation_plan import EvaluationPlan
from commonground.engine.setup import Setup
from commonground.terminal import human_bytes

__all__ = ["plan_table"]


def plan_table(setup: Setup, out: Path) -> Table:
    """A run before it begins.

    Args:
        setup: of the run.
        out: the folder that it would write.
    """
    config, algorithm, data = setup.config, setup.algorithm, setup.data
    asked = config.participants(data.clients)
    table = Table(title=f"{config.algorithm} on {data.name}: a dry run", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("data", data.describe())
    table.add_row("model", f"{config.model}, {_weights(setup, tuple(setup.initial)):,} weights")
    table.add_row("", f"{_weights(setup, setup.shared_names):,} travel, {_weights(setup, setup.personal_names):,} stay")
    options = ", ".join(f"{name}={value}" for name, value in vars(algorithm).items() if value is not None)
    table.add_row("method", f"{algorithm.title}{f': {options}' if options else ''}")
    local = counted(config.local_steps, "step") if config.local_steps else counted(config.local_epochs, "epoch")
    table.add_row("rounds", f"{config.rounds:,}, of {asked:,} of {data.clients:,} clients each")
    table.add_row(
        "local training", f"{local} in batches of {config.batch_size}, {config.optimizer} at lr {config.lr:g}"
    )
    names = setup.groups.names(algorithm.sends(1))
    up = payload_bytes({n: setup.initial[n] for n in names} | algorithm.upload_state(setup.common, setup.groups))
    down = payload_bytes(setup.initial_shared)
    table.add_row("a client's round", f"{human_bytes(down)} from the server, {human_bytes(up)} to it")
    table.add_row("the whole run", f"{human_bytes(config.rounds * asked * (down + up))}, both ways together")
    plan = EvaluationPlan(setup)
    due = sum(plan.is_due(round) for round in range(1, config.rounds + 1))
    table.add_row("tests", f"after {counted(due, 'round')}, {len(plan.panel):,} clients each")
    engine = choose_engine(setup) if config.engine == "auto" else config.engine
    engine = "pooled" if algorithm.pools else engine
    table.add_row(
        "computed by", f"engine {engine} on {setup.device}, {counted(config.threads, 'thread')}, {config.precision}"
    )
    table.add_row("files", f"{out}, which a run would write; this one wrote nothing")
    return table


def counted(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _weights(setup: Setup, names: tuple[str, ...]) -> int:
    return sum(setup.initial[name].numel() for name in names if name in setup.initial)
