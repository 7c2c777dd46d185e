"""RoLoRA's Figure 4 (and 6 to 8, with other ranks): fewer and more adapted layers, three clients."""

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
    PAPER_LAYERS,
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

__all__ = ["Budgets", "LayerBudget"]

SOURCE = "Chen et al. 2025, Figure 4"
SEEDS = 3
COMPARABLE = 1.0  # points, ours: the paper says "comparable"


class LayerBudget(BaseModel):
    """One set of adapted layers.

    Attributes:
        layers: their numbers.
        target_modules: adapted matrices; query and value by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: Layers
    target_modules: str | dict[str, str] = ""


class Budgets(GlueSettings):
    """What the experiment is run with, beside :class:`~commonground.papers.rolora.glue.GlueSettings`.

    Attributes:
        budgets: by name, the smallest first, as in ``budgets={P1={layers="5"},P2={layers="4-5"}}``.
    """

    budgets: dict[str, LayerBudget] = Field(default_factory=dict)


# Table 7; P1 of SST-2 is W_v alone.
_TABLE7 = {
    "P1": LayerBudget(
        layers="21-23", target_modules={"sst2": "value", **dict.fromkeys(["qnli", "mnli", "qqp", "rte"], "")}
    ),
    "P2": LayerBudget(layers=dict(PAPER_LAYERS)),
    "P3": LayerBudget(layers={"sst2": "0-23", **dict.fromkeys(["qnli", "mnli", "qqp", "rte"], "12-23")}),
}

SMALL = small_settings(
    Budgets,
    **SMALL_FIGURES,
    budgets={
        "P1": LayerBudget(layers="5", target_modules="value"),
        "P2": LayerBudget(layers="5"),
        "P3": LayerBudget(layers="3-5"),
    },
)


def _run(request: Request) -> Outcome:
    settings = request.choose(SMALL, paper_settings(Budgets, clients=(3,), methods=THREE, budgets=_TABLE7))
    settings.check()
    if not settings.budgets:
        raise ConfigError('budgets is empty; name at least one, as in --set budgets={P1={layers="5"}}')
    tasks = GlueTasks(settings, request)
    names = list(names_of(settings.methods))
    clients = min(settings.clients)
    where = {(task, budget): f"{LABELS[task]}, {budget}" for task in settings.tasks for budget in settings.budgets}
    every = [
        arm
        for (task, budget), condition in where.items()
        for arm in arms(
            condition,
            settings,
            tasks,
            task,
            clients,
            layers=str(of(settings.budgets[budget].layers, task, "layers")),
            target_modules=of(settings.budgets[budget].target_modules, task, "target_modules"),
        )
    ]
    outcome = Outcome(settings=settings.model_dump(mode="json") | {"model": tasks.label})
    measured = measure(every, request.seed_range(SEEDS), settings, request, outcome.notes)
    found = Conditions(measured, SOURCE, outcome)
    for condition in where.values():
        outcome.cells += [cell(condition, name, None, measured[condition, name]) for name in names]
    names_of_budgets = list(settings.budgets)
    least, most = names_of_budgets[0], names_of_budgets[-1]
    for task in settings.tasks:
        _judge(found, where[task, least], where[task, most])
    found.exactness()
    found.costs()
    outcome.notes = [
        *glue_notes(settings, tasks, request, {name: _says(one) for name, one in settings.budgets.items()}),
        f"With {clients} clients. Figures 6, 7 and 8 are --set rank=8, 2 and 1. The paper prints no values; "
        f'"comparable" is judged at {COMPARABLE:g} point by us.',
        *outcome.notes,
    ]
    return outcome


def _says(budget: LayerBudget) -> str:
    return f"{budget.layers} ({budget.target_modules})" if budget.target_modules else str(budget.layers)


def _judge(found: Conditions, least: str, most: str) -> None:
    outcome = found.outcome
    small = {name: found.of(least, name) for name in ("LoRA", "FFA-LoRA", "RoLoRA")}
    large = {name: found.of(most, name) for name in ("LoRA", "FFA-LoRA", "RoLoRA")}
    rolora, ffa, lora = small["RoLoRA"], small["FFA-LoRA"], small["LoRA"]
    if rolora is not None and ffa is not None:
        judge(outcome, f"RoLoRA above FFA-LoRA: {least} (points)", SOURCE, "above", paired(rolora, ffa), "above")
        more_rolora, more_ffa = large["RoLoRA"], large["FFA-LoRA"]
        if least != most and more_rolora is not None and more_ffa is not None:
            gap = paired(rolora, ffa) - paired(more_rolora, more_ffa)
            text = f"RoLoRA's lead over FFA-LoRA is larger with few parameters: {least} against {most} (points)"
            judge(outcome, text, SOURCE, "more robust", gap, "above")
    if rolora is not None and lora is not None:
        text = f"RoLoRA comparable to LoRA: {least} (points above it, within {COMPARABLE:g})"
        judge(outcome, text, SOURCE, "comparable", paired(rolora, lora), "within", tolerance=COMPARABLE)
    lora, ffa = large["LoRA"], large["FFA-LoRA"]
    if lora is not None and ffa is not None:
        text = f"with enough parameters FFA-LoRA comparable to LoRA: {most} (points below it, within {COMPARABLE:g})"
        judge(outcome, text, SOURCE, "comparable", paired(lora, ffa), "within", tolerance=COMPARABLE)


Experiment("rolora-fig4", "fewer and more adapted layers, three clients", SOURCE, _run)
