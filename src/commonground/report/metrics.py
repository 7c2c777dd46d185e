"""What the columns of ``rounds.jsonl`` mean, for people; a column nobody has described is shown under its own name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from commonground.report.format import Unit, number, unit_of
from commonground.tasks import Headline

__all__ = ["ChartSpec", "extra_metrics"]

# Columns that have a figure of their own, or say something about the round and not about learning.
_SHOWN = {
    "round", "train_loss", "bytes_up", "bytes_down", "seconds", "eval_seconds", "lr", "participants",
    "evaluated_clients",
}  # fmt: skip
MOST = 8


@dataclass(frozen=True)
class ChartSpec:
    """A column.

    Attributes:
        key: its name in the file.
        title: of its figure.
        reads: what it shows and how to read it.
        axis: label of its axis.
        unit: of its values.
    """

    key: str
    title: str
    reads: str
    axis: str
    unit: Unit = "number"


_NC2 = (
    "How far the participants' heads are from pointing in evenly spread directions, one per class (neural collapse, "
    "NC2; Liu et al. 2024, App. C.2): 0 is the perfect arrangement, "
)
_OF_HEADS = (
    ChartSpec("global_nc2", "Global NC2", _NC2 + "here as part of one simplex of all classes.", "global NC2"),
    ChartSpec(
        "local_nc2", "Local NC2", _NC2 + "here of each client's own classes, averaged over clients.", "local NC2"
    ),
)
_OF_FACTORS = (
    ChartSpec(
        "aggregation_error",
        "What averaging LoRA factors costs",
        "How far the product of the participants' averaged factors lies from the average of their products, relative "
        "to its length: 0 where all share one factor, as in RoLoRA and FFA-LoRA. FlexLoRA and FLoRA do not average "
        "factors: theirs says what doing so would have cost (summary.json, aggregation_error_of).",
        "relative distance",
    ),
)
_OF_BODIES = (
    ChartSpec(
        "body_drift",
        "Drift of the bodies",
        "How far the participants' bodies lie from their average, relative to its length; large values mean that "
        "clients pull the shared body apart.",
        "relative distance",
    ),
    ChartSpec(
        "body_angle_mean",
        "Turn of the representation",
        "Mean principal angle, in radians, between the outputs of the shared body before and after the round: 0 "
        "when the representation has settled.",
        "radians",
    ),
    ChartSpec(
        "body_angle_max",
        "Largest turn of the representation",
        "Largest principal angle, in radians, between the outputs of the shared body before and after the round; "
        "π/2 when a direction is new.",
        "radians",
    ),
)


def _judged(headline: Headline) -> tuple[ChartSpec, ...]:
    """Columns in the unit of the task's own metric."""
    up, name, unit = headline.higher_is_better, headline.name, unit_of(headline)
    reach, falls, below = ("exceed", "falls behind", "below") if up else ("stay below", "rises above", "above")
    return (
        ChartSpec(
            "worst_decile",
            "Worst tenth of clients",
            f"The {name} that nine clients in ten reach or {reach}; it {falls} the mean where a method serves "
            "some clients badly.",
            f"{headline.percentile} of {name}",
            unit,
        ),
        ChartSpec(
            f"before_local_{headline.key}",
            "Participants before local training",
            f"{headline.title} of the round's participants, on their own test samples, with what they have just "
            "received.",
            name,
            unit,
        ),
        ChartSpec(
            f"after_local_{headline.key}",
            "Participants after local training",
            f"The same participants right after their local training, before anything is averaged; {below} the figure "
            "before it, local training overfits.",
            name,
            unit,
        ),
    )


def extra_metrics(
    rounds: Iterable[Mapping[str, Any]], headline: Headline, of_task: Headline | None = None
) -> list[ChartSpec]:
    """The columns with numbers that have no figure yet, known ones first, at most MOST.

    Args:
        rounds: rows of ``rounds.jsonl``.
        headline: the metric that has a figure.
        of_task: the one in which rounds tell of the worst tenth and of participants; None if it is the same.
    """
    shown = _SHOWN | {headline.personal, headline.shared}
    if headline.counted != "classes":  # neural collapse is told of heads with one direction for each class
        shown |= {metric.key for metric in _OF_HEADS}
    keys = {key for row in rounds for key, value in row.items() if number(value) is not None} - shown
    specs = (*_OF_HEADS, *_judged(of_task or headline), *_OF_FACTORS, *_OF_BODIES)
    described = {metric.key: metric for metric in specs}
    known = [metric for key, metric in described.items() if key in keys]
    other = [_unknown(key) for key in sorted(keys - set(described))]
    return (known + other)[:MOST]


def _unknown(key: str) -> ChartSpec:
    name = key.replace("_", " ")
    title = name[:1].upper() + name[1:]
    unit: Unit = "percent" if "accuracy" in key else "bytes" if "bytes" in key else "number"
    return ChartSpec(key, title, f"The column '{key}' after each round.", name, unit)
