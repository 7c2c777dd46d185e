"""RoLoRA's Figure 5: equal bytes up, so that RoLoRA and FFA-LoRA adapt twice as many layers as LoRA (Table 8)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from commonground.errors import ConfigError
from commonground.papers.claims import judge
from commonground.papers.experiment import Experiment
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.papers.rolora.findings import Conditions, cell, paired
from commonground.papers.rolora.glue import (
    LABELS,
    SMALL_FIGURES,
    THREE,
    GlueSettings,
    GlueTasks,
    Layers,
    arms,
    glue_notes,
    of,
    paper_settings,
    small_settings,
)
from commonground.papers.rolora.protocol import measure, names_of

__all__ = ["EqualBytes", "Pair"]

SOURCE = "Chen et al. 2025, Figure 5 and Table 8"
SEEDS = 3
HALF = ("FFA-LoRA", "RoLoRA")  # send one factor of two


class Pair(BaseModel):
    """Layer sets of one budget.

    Attributes:
        both: layers of the methods that send both factors.
        one: layers of those that send one, twice as many.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    both: Layers
    one: Layers


class EqualBytes(GlueSettings):
    """What the experiment is run with, beside :class:`~commonground.papers.rolora.glue.GlueSettings`.

    Attributes:
        budgets: by name, as in ``budgets={small={both="5",one="4-5"}}``.
    """

    budgets: dict[str, Pair] = Field(default_factory=dict)


_TABLE8 = {"187.5 KB": Pair(both="21-23", one="18-23"), "250 KB": Pair(both="20-23", one="16-23")}

SMALL = small_settings(
    EqualBytes,
    **SMALL_FIGURES,
    budgets={"1 layer of LoRA": Pair(both="5", one="4-5"), "2 layers of LoRA": Pair(both="4-5", one="2-5")},
)


def _run(request: Request) -> Outcome:
    paper = paper_settings(
        EqualBytes, tasks=("qqp", "mnli", "qnli", "rte"), clients=(3,), methods=THREE, budgets=_TABLE8
    )
    settings = request.choose(SMALL, paper)
    settings.check()
    if not settings.budgets:
        raise ConfigError('budgets is empty; name at least one, as in --set budgets={small={both="5",one="4-5"}}')
    tasks = GlueTasks(settings, request)
    names = names_of(settings.methods)
    where = {(task, budget): f"{LABELS[task]}, {budget}" for task in settings.tasks for budget in settings.budgets}
    every = [
        arm
        for (task, budget), condition in where.items()
        for name, ours in names.items()
        for arm in arms(
            condition,
            settings,
            tasks,
            task,
            min(settings.clients),
            [ours],
            layers=str(of(_set(settings.budgets[budget], name), task, "layers")),
        )
    ]
    outcome = Outcome(settings=settings.model_dump(mode="json") | {"model": tasks.label})
    measured = measure(every, request.seed_range(SEEDS), settings, request, outcome.notes)
    found = Conditions(measured, SOURCE, outcome)
    for condition in where.values():
        outcome.cells += [cell(condition, name, None, measured[condition, name]) for name in names]
        rolora = found.of(condition, "RoLoRA")
        for name in names:
            if rolora is not None and name != "RoLoRA":
                text = f"RoLoRA above {name} at equal bytes: {condition} (points)"
                word = None if name == "FlexLoRA" else "above for most tasks"
                judge(outcome, text, SOURCE, word, paired(rolora, measured[condition, name]), "above")
    found.exactness(share=1.0)
    found.costs()
    outcome.notes = [
        *glue_notes(settings, tasks, request, {name: _says(one) for name, one in settings.budgets.items()}),
        "Bytes are those of the factors; a trained task head comes on top, the same for all methods.",
        "Table 8's 187.5 and 250 KB count 1,000 numbers to a row; RoBERTa-Large's 1,024 make 192 and 256 KiB.",
        *outcome.notes,
    ]
    return outcome


def _says(pair: Pair) -> str:
    return f"{pair.both} (methods that send one factor: {pair.one})"


def _set(budget: Pair, name: str) -> Layers:
    return budget.one if name in HALF else budget.both


Experiment("rolora-fig5", "equal bytes: twice the layers for methods that send one factor", SOURCE, _run)
