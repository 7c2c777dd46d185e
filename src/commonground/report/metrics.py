"""What the columns of ``rounds.jsonl`` mean, for people; a column nobody has described is shown under its own name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from commonground.report.format import Unit, number

__all__ = ["Metric", "extra_metrics"]

# Columns that have a figure of their own, or say something about the round and not about learning.
_SHOWN = {
    "round", "train_loss", "personal_accuracy", "global_accuracy", "bytes_up", "bytes_down", "seconds", "eval_seconds",
    "lr", "participants", "evaluated_clients",
}  # fmt: skip
MOST = 8


@dataclass(frozen=True)
class Metric:
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
    "How far the class means of the features are from pointing in evenly spread directions (neural collapse, NC2): "
    "0 is the perfect arrangement, so a falling curve means that the classes separate "
)
_KNOWN = {
    metric.key: metric
    for metric in (
        Metric("global_nc2", "Global NC2", _NC2 + "over all clients' data.", "global NC2"),
        Metric("local_nc2", "Local NC2", _NC2 + "within each client's own data, averaged over clients.", "local NC2"),
        Metric(
            "subspace_distance",
            "Distance to the true representation",
            "Principal angle distance between the learned and the true subspace: 0 means they coincide, 1 that a "
            "direction is missed.",
            "subspace distance",
        ),
    )
}


def extra_metrics(rounds: Iterable[Mapping[str, Any]]) -> list[Metric]:
    """The columns with numbers that have no figure yet, known ones first, at most MOST."""
    keys = {key for row in rounds for key, value in row.items() if number(value) is not None} - _SHOWN
    known = [metric for key, metric in _KNOWN.items() if key in keys]
    other = [_unknown(key) for key in sorted(keys - set(_KNOWN))]
    return (known + other)[:MOST]


def _unknown(key: str) -> Metric:
    name = key.replace("_", " ")
    title = name[:1].upper() + name[1:]
    unit: Unit = "percent" if "accuracy" in key else "bytes" if "bytes" in key else "number"
    return Metric(key, title, f"The column '{key}' after each round.", name, unit)
