"""RoLoRA's Figure 3: accuracy over rounds on GLUE with 50 clients."""

from __future__ import annotations

from commonground.papers.claims import judge
from commonground.papers.experiment import Experiment
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.papers.rolora.findings import Conditions, cell, curves, paired
from commonground.papers.rolora.glue import (
    LABELS,
    GlueSettings,
    GlueTasks,
    arms,
    glue_notes,
    paper_settings,
    small_settings,
)
from commonground.papers.rolora.protocol import measure, names_of

__all__: list[str] = []

SOURCE = "Chen et al. 2025, Figure 3"
SEEDS = 3

SMALL = small_settings(GlueSettings, clients=(20,), rounds=24, eval_every=3)


def source_of(name: str) -> str:
    """Whose the comparison with a method is: the figure does not have FlexLoRA."""
    return f"ours, beside {SOURCE}" if name == "FlexLoRA" else SOURCE


def _run(request: Request) -> Outcome:
    tasks_of_figure = ("sst2", "qnli", "mnli", "qqp")
    paper = paper_settings(GlueSettings, tasks=tasks_of_figure, clients=(50,), rounds=30, eval_every=1)
    settings = request.choose(SMALL, paper)
    settings.check()
    tasks = GlueTasks(settings, request)
    names = list(names_of(settings.methods))
    conditions = {f"{LABELS[task]}, {n} clients": (task, n) for task in settings.tasks for n in settings.clients}
    every = [arm for where, (task, n) in conditions.items() for arm in arms(where, settings, tasks, task, n)]
    outcome = Outcome(settings=settings.model_dump(mode="json") | {"model": tasks.label})
    measured = measure(every, request.seed_range(SEEDS), settings, request, outcome.notes)
    found = Conditions(measured, SOURCE, outcome)
    for where in conditions:
        lines = {name: measured[where, name] for name in names}
        outcome.figures[f"{where}: accuracy over rounds"] = curves(lines)
        outcome.figures[f"{where}: accuracy over bytes"] = curves(lines, "uploaded")
        outcome.cells += [cell(where, name, None, one) for name, one in lines.items()]
        if "RoLoRA" not in lines:
            continue
        for name in names:
            if name != "RoLoRA":
                word = None if name == "FlexLoRA" else "substantially better"
                speed = 100 * (lines["RoLoRA"].curves.mean(1) - lines[name].curves.mean(1))
                text = f"RoLoRA learns faster than {name}: {where} (mean accuracy over the rounds, points)"
                judge(outcome, text, source_of(name), word, speed, "above")
                text = f"RoLoRA ends above {name}: {where} (points)"
                judge(outcome, text, source_of(name), word, paired(lines["RoLoRA"], lines[name]), "above")
    found.exactness()
    found.costs()
    outcome.notes = [
        *glue_notes(settings, tasks, request),
        "The paper prints no values for this figure; speed is judged by the mean of a curve.",
        *outcome.notes,
    ]
    return outcome


Experiment("rolora-fig3", "four methods on GLUE over rounds, many clients", SOURCE, _run)
