"""What it costs to reach a value of the task's metric: rounds, bytes and seconds until then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commonground.data import FederatedDataset
from commonground.engine import Run
from commonground.errors import ConfigError
from commonground.statistics import mean
from commonground.tasks import Headline

__all__ = ["Target", "check_value"]


def check_value(metric: Headline, value: float) -> None:
    """Refuse what a metric never is.

    Raises:
        ConfigError: it is not finite or, of a share, not between 0 and 1.
    """
    if not math.isfinite(value) or (metric.percent and not 0 < value <= 1):
        such = "above 0 and at most 1, such as 0.8" if metric.percent else "that is finite"
        raise ConfigError(f"the target {value:g} is no {metric.name}; give a number {such}")


@dataclass(frozen=True)
class Target:
    """A value of the task's own metric, which is known after every round, for runs to reach.

    Attributes:
        metric: the task's metric.
        value: what is to be reached: at least this of a metric of which more is better, at most this of another.
    """

    metric: Headline
    value: float

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Target | None:
        """The target of what ``comparison.json`` holds; None if it has none."""
        task = {key: result[key] for key in ("task",) if key in result}
        return None if result.get("target") is None else cls(Headline.of(task), result["target"])

    @classmethod
    def for_data(cls, data: FederatedDataset, to_accuracy: float | None, to_metric: float | None) -> Target | None:
        """A target for data; None if none was asked for.

        Args:
            data: the federated data set.
            to_accuracy: an accuracy to be reached.
            to_metric: a value of whatever metric the task has, in its place.

        Raises:
            ConfigError: the data's task does not have that metric, or the metric never has that value.
        """
        metric, value = Headline.of(data.task), to_metric if to_accuracy is None else to_accuracy
        if value is None:
            return None
        if to_accuracy is not None and metric.key != "accuracy":
            raise ConfigError(
                f"--to-accuracy asks for an accuracy, which {data.name}, a task of {data.task.name}, has not; "
                f"--to-metric asks for its {metric.name}"
            )
        check_value(metric, value)
        return cls(metric, value)

    @property
    def key(self) -> str:
        """Under which a method's entry has the cost: ``to_accuracy``, ``to_rmse``."""
        return f"to_{self.metric.key}"

    @property
    def short(self) -> str:
        """For a column: ``80 %`` or ``0.3``."""
        return f"{100 * self.value:g} %" if self.metric.percent else f"{self.value:g}"

    @property
    def text(self) -> str:
        """With the metric's name: ``80 % accuracy`` or ``RMSE 0.3``."""
        return f"{self.short} {self.metric.name}" if self.metric.percent else f"{self.metric.name} {self.short}"

    def reached_by(self, value: float | None) -> bool:
        """Whether a value is as good as the target."""
        return value is not None and self.metric.from_worst(value) >= self.metric.from_worst(self.value)

    def cost(self, runs: Sequence[Run]) -> dict[str, Any] | None:
        """Means over the seeds that reach it, over the rounds up to the first that does; None if none does."""
        key = self.metric.personal
        found: list[tuple[int, float, int]] = []
        for run in runs:
            rows, summary = run.history, run.summary
            reached = next((n for n, row in enumerate(rows, 1) if self.reached_by(row[key])), None)
            if reached is not None:
                count = sum(row["bytes_up"] + row["bytes_down"] for row in rows[:reached])
                found.append((count, sum(row["seconds"] for row in rows[:reached]), rows[reached - 1]["round"]))
            elif self.reached_by(summary[key]["mean"]):  # by fine-tuning after the last round
                sent = summary["bytes_up"] + summary["bytes_down"]
                found.append((sent, summary["seconds"], summary["rounds"]))
        if not found:
            return None
        count, seconds, rounds = map(mean, zip(*found, strict=True))
        return {"target": self.value, "bytes": count, "seconds": seconds, "rounds": rounds, "reached": len(found)}

    def notes(self, entries: Sequence[Mapping[str, Any]], seeds: int) -> list[str]:
        """Footnotes: what is counted, and which methods did not reach it with every seed.

        Args:
            entries: the methods'.
            seeds: how many.
        """
        notes = [
            f"to {self.short}: rounds, bytes in both directions and training seconds until the {self.metric.name} on "
            f"test samples first {'reaches' if self.metric.higher_is_better else 'falls to'} it."
        ]
        for entry in entries:
            reached = entry[self.key]["reached"] if entry[self.key] else 0
            if reached < seeds:
                how = (
                    f"reached it with {reached} of {seeds} seeds (means over these)" if reached else "did not reach it"
                )
                notes.append(f"{entry['title']} {how}.")
        return notes
