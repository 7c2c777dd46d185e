"""What it costs to reach a value of the task's metric: rounds, bytes and seconds until then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from commonground.data import FederatedDataset
from commonground.engine import Run
from commonground.errors import ConfigError
from commonground.statistics import mean
from commonground.tasks import Headline, Target

__all__ = ["asked_target", "notes_on", "what_it_costs"]


def asked_target(data: FederatedDataset, to_accuracy: float | None, to_metric: float | None) -> Target | None:
    """What is to be reached; None if nothing was asked for.

    Args:
        data: the federated data set.
        to_accuracy: an accuracy.
        to_metric: in its place, a value of whatever metric the task has.

    Raises:
        ConfigError: the task does not have that metric, or the metric never has that value.
    """
    metric, value = Headline.of(data.task), to_metric if to_accuracy is None else to_accuracy
    if value is None:
        return None
    if to_accuracy is not None and metric.key != "accuracy":
        raise ConfigError(
            f"--to-accuracy asks for an accuracy, which {data.name}, a task of {data.task.name}, has not; "
            f"--to-metric asks for its {metric.name}"
        )
    return Target(metric, value)


def what_it_costs(target: Target, runs: Sequence[Run]) -> dict[str, Any] | None:
    """Means over the seeds that reach it, over the rounds up to the first that does; None if none does.

    Of a run that is fine-tuned after its last round the global model's rounds count, since it is what is tuned; of one
    that early stopping ended, those up to the round that is kept.
    """
    found: list[tuple[int, float, int]] = []
    for run in runs:
        summary, of_round = run.summary, target.metric.shared if run.config.finetune_epochs else target.metric.personal
        kept = (summary.get("early_stopping") or {}).get("best_round", math.inf)
        rows = [row for row in run.history if row["round"] <= kept]
        reached = next((n for n, row in enumerate(rows, 1) if target.reached_by(row[of_round])), None)
        if reached is not None:
            count = sum(row["bytes_up"] + row["bytes_down"] for row in rows[:reached])
            found.append((count, sum(row["seconds"] for row in rows[:reached]), rows[reached - 1]["round"]))
        elif target.reached_by(summary[target.metric.personal]["mean"]):  # by fine-tuning after the last round
            sent = summary["bytes_up"] + summary["bytes_down"]
            found.append((sent, summary["seconds"], summary["rounds"]))
    if not found:
        return None
    count, seconds, rounds = map(mean, zip(*found, strict=True))
    return {"target": target.value, "bytes": count, "seconds": seconds, "rounds": rounds, "reached": len(found)}


def notes_on(target: Target, entries: Sequence[Mapping[str, Any]], seeds: int) -> list[str]:
    """Footnotes: what is counted, and which methods did not reach it with every seed.

    Args:
        target: what was to be reached.
        entries: the methods'.
        seeds: how many.
    """
    notes = [
        f"to {target.text}: rounds, bytes in both directions and training seconds until the {target.metric.name} on "
        f"test samples first {'reaches' if target.metric.higher_is_better else 'falls to'} it."
    ]
    fewer: dict[int, list[str]] = {}
    for entry in entries:
        reached = entry[target.key]["reached"] if entry[target.key] else 0
        if reached < seeds:
            fewer.setdefault(reached, []).append(entry["title"])
    for reached, titles in sorted(fewer.items(), reverse=True):
        how = f"reached it with {reached} of {seeds} seeds (means over these)" if reached else "did not reach it"
        notes.append(f"{', '.join(titles)} {how}.")
    return notes
