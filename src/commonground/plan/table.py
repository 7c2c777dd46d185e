"""A plan as a table in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from commonground.counted import counted
from commonground.engine.evaluation_plan import EvaluationPlan
from commonground.engine.setup import Setup
from commonground.plan.estimate import Plan
from commonground.plan.ledger import kind_of
from commonground.privacy import about_privacy
from commonground.terminal import human_bytes

__all__ = ["plan_table"]


def plan_table(plan: Plan, out: Path) -> Table:
    """A run before it begins.

    Args:
        plan: of the run.
        out: the folder that it would write.
    """
    setup = plan.setup
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
    between = f"{plan.fewest_rounds:,} to {config.rounds:,}, by early stopping" if _most(plan) else f"{config.rounds:,}"
    table.add_row("rounds", f"{between}, of {asked:,} of {data.clients:,} clients each")
    table.add_row(
        "local training", f"{local} in batches of {config.batch_size}, {config.optimizer} at lr {config.lr:g}"
    )
    table.add_row("a client's round", _sent_in_a_round(plan))
    table.add_row("the whole run", _sent(plan))
    tests = EvaluationPlan(setup)
    due = sum(tests.is_due(round) for round in range(1, config.rounds + 1))
    table.add_row("tests", f"after {_most(plan)}{counted(due, 'round')}, {len(tests.panel):,} clients each")
    if plan.privacy:
        table.add_row("privacy", f"{'at most ' if _most(plan) else ''}{about_privacy(plan.privacy)}")
        table.add_row("", f"not covered: {plan.privacy['not_covered']}")
    table.add_row(
        "computed by",
        f"engine {plan.engine} on {setup.device}, {counted(config.threads, 'thread')}, {config.precision}",
    )
    table.add_row("time", _time(plan))
    table.add_row("memory", _memory(plan))
    table.add_row("disk", f"up to {human_bytes(sum(plan.files.values()))}; {human_bytes(plan.disk_free)} are free")
    table.add_row("files", f"{out}, which a run would write; this one wrote nothing")
    for sentence in plan.advice:
        table.add_row("will not fit", sentence)
    return table


def _most(plan: Plan) -> str:
    """Before what is of all rounds, where early stopping may leave some out."""
    return "at most " if plan.fewest_rounds < plan.setup.config.rounds else ""


def _sent_in_a_round(plan: Plan) -> str:
    setup, sent = plan.setup, plan.sent
    config = setup.config
    down, up = (way[1] / (config.rounds * config.participants(setup.data.clients)) for way in (sent.down, sent.up))
    remembers = setup.algorithm.clients_remember
    unknown = config.early_stopping is None and not sent.exact  # where to work it out would take long
    limit = "at most " if remembers and unknown else ""
    alike = not remembers and len({kind_of(setup, round) for round in range(1, config.rounds + 1)}) == 1
    how = "" if alike or limit else ", on average"
    return f"{limit}{human_bytes(down)} from the server, {human_bytes(up)} to it{how}"


def _sent(plan: Plan) -> str:
    low, high = (plan.sent.up[end] + plan.sent.down[end] for end in (0, 1))
    if plan.sent.exact:
        return f"{human_bytes(high)}, both ways together ({plan.sent.up[1]:,} up, {plan.sent.down[1]:,} down)"
    return f"{human_bytes(low)} to {human_bytes(high)}, both ways together"


def _time(plan: Plan) -> str:
    found = plan.measured
    parts = {"training": found.rounds, "tests": found.tests, "the last test": found.end}
    told = ", ".join(f"{name} {human_seconds(seconds)}" for name, seconds in parts.items() if seconds)
    rehearsed = counted(found.participants, "client")
    part = "" if found.batches is None else f" and {counted(found.batches, 'mini-batch').replace('batchs', 'batches')}"
    return f"{_most(plan)}about {human_seconds(plan.seconds)} ({told}; by rounds of {rehearsed}{part} timed just now)"


def _memory(plan: Plan) -> str:
    free = "" if plan.memory_free is None else f"; {human_bytes(plan.memory_free)} can be had"
    text = f"about {human_bytes(plan.memory.peak)}"
    if plan.memory.workers > 1:
        text = f"about {human_bytes(plan.memory.together)} in {plan.memory.workers + 1} processes"
        text += f", {human_bytes(plan.memory.peak)} in the largest"
    if plan.memory.device:
        text += f", and {human_bytes(plan.memory.device)} on {plan.setup.device}"
    return text + free


def human_seconds(seconds: float) -> str:
    """Seconds, minutes or hours, as reads well."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _weights(setup: Setup, names: tuple[str, ...]) -> int:
    return sum(setup.initial[name].numel() for name in names if name in setup.initial)
