"""Local steps' Tables 1 to 3: test and training accuracy of Local SGD with growing intervals and of Parallel SGD."""

from __future__ import annotations

from typing import Literal

import numpy as np

from commonground.papers.claims import judge
from commonground.papers.experiment import Experiment
from commonground.papers.figures import Figure, mean_curve
from commonground.papers.local_steps.images import (
    SEEDS,
    Accuracies,
    ImageCase,
    ImageSettings,
    image_notes,
    measure,
    name_of,
    paper_settings,
    power_row,
    small_settings,
)
from commonground.papers.outcome import Cell, Outcome, interval_columns
from commonground.papers.printed_values import printed, printed_lead, printed_side
from commonground.papers.request import Request

__all__: list[str] = []

SOURCE = "Bao, Crawshaw, Liu 2024, Tables 1 to 3"
# Averages in a run, T/I, from which on the paper's training accuracies are equal; with a quarter of them they are not.
AVERAGES, AUGMENTED_AVERAGES = 64, 1024
EQUAL = 1.0  # points of training accuracy, ours: the paper says "the same training accuracy" (at least 99.9 %)

SMALL = small_settings(ImageSettings)
PAPER = paper_settings(ImageSettings, intervals=(1, 8, 16, 32, 64, 256, 1024))

ROWS = {
    (int(r["local_steps"]), "flip-crop" if r["augmentation"] == "yes" else "none", float(r["h"])): r
    for r in printed("local-steps-table1")
}


def _paper(arm: ImageCase, column: str = "test_accuracy_percent") -> float | None:
    row = ROWS.get((arm.interval, arm.augment, arm.heterogeneity))
    return None if row is None else float(row[column])


def _run(request: Request) -> Outcome:
    settings = request.choose(SMALL, PAPER)
    settings.check()
    intervals = settings.with_parallel()
    seeds = request.seed_range(SEEDS)
    columns = [(way, h) for way in settings.augment for h in settings.heterogeneity]
    arms = [ImageCase(i, h, way) for way, h in columns for i in intervals]
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    found = measure(settings, arms, list(seeds), request, outcome.notes)
    for arm in arms:
        outcome.cells.append(Cell.over_seeds(_column(arm), name_of(arm.interval), _paper(arm), found[arm].test))
    for way, h in columns:
        _judge(outcome, [ImageCase(i, h, way) for i in intervals], found, settings.steps_of(way))
    outcome.add_table("training accuracy (%)", [_training(arm, found[arm]) for arm in arms])
    outcome.add_table(
        "differences from Parallel SGD (points of test accuracy) and what so many seeds can show",
        [
            {"setting": _column(arm), "method": name_of(arm.interval)}
            | power_row(found[arm].test - found[ImageCase(1, arm.heterogeneity, arm.augment)].test)
            for arm in arms
            if arm.interval > 1
        ],
    )
    for which in ("test", "train"):
        lines = {
            _column(ImageCase(1, h, way)): mean_curve(
                [float(i) for i in intervals],
                np.stack([getattr(found[ImageCase(i, h, way)], which) for i in intervals], 1) / 100,
            )
            for way, h in columns
        }
        title = f"{'test' if which == 'test' else 'training'} accuracy over the interval I"
        outcome.figures[title] = Figure("local steps I", "accuracy", lines, log_x=True, percent=True)
    outcome.notes = [*image_notes(settings, request), *outcome.notes]
    return outcome


def is_equal_in_training(arm: ImageCase, steps: int) -> bool:
    """Whether the paper's training accuracies are those of Parallel SGD where so few of so many steps are averaged."""
    return steps >= (AVERAGES if arm.augment == "none" else AUGMENTED_AVERAGES) * arm.interval


def _column(arm: ImageCase) -> str:
    return f"{'with' if arm.augment != 'none' else 'no'} augmentation, h = {arm.heterogeneity:g}"


def _training(arm: ImageCase, measured: Accuracies) -> dict[str, object]:
    theirs = _paper(arm, "train_accuracy_percent")
    return {
        "setting": _column(arm),
        "method": name_of(arm.interval),
        "paper": "" if theirs is None else theirs,
        **interval_columns(measured.train),
        "seconds": round(float(measured.seconds.mean()), 1),
    }


def _judge(outcome: Outcome, arms: list[ImageCase], found: dict[ImageCase, Accuracies], steps: int) -> None:
    """One column's claims; the first arm is Parallel SGD."""
    parallel, *local = arms
    where = _column(parallel)

    def compare(one: ImageCase, other: ImageCase, said: Literal["above", "below"], statement: str) -> None:
        theirs = printed_lead(*(_paper(arm, "test_accuracy_percent") for arm in (one, other)))
        side = printed_side(theirs, said)
        pair = f"{name_of(one.interval)} {side} {name_of(other.interval)}"
        # A column that says the opposite is no case of the statement.
        text = f"{statement}: {pair}" if statement and side == said else f"{pair} in test accuracy"
        judge(outcome, f"{text}: {where} (points)", SOURCE, theirs, found[one].test - found[other].test, side)

    for arm in local:
        compare(arm, parallel, "above", "")
        if is_equal_in_training(arm, steps):
            text = f"{name_of(arm.interval)} at Parallel SGD's training accuracy: {where} (points, within {EQUAL:g})"
            theirs = printed_lead(*(_paper(each, "train_accuracy_percent") for each in (arm, parallel)))
            ours = found[arm].train - found[parallel].train
            judge(outcome, text, SOURCE, theirs, ours, "within", tolerance=EQUAL)
    middle = local[len(local) // 2]
    if middle != local[0]:
        compare(middle, local[0], "above", "test accuracy rises with I")
    if middle != local[-1]:
        compare(local[-1], middle, "below", "up to a point")
    worst = [float(min(found[arm].test) - max(found[parallel].test)) for arm in local]
    gaps = ", ".join(f"I = {arm.interval} {gap:+.1f} points" for arm, gap in zip(local, worst, strict=True))
    outcome.notes.append(f"{where}: worst seed of Local SGD against best seed of Parallel SGD: {gaps}.")


Experiment("local-steps-table1", "Local SGD with growing intervals against Parallel SGD on images", SOURCE, _run)
