"""Which round's models a run ends with when validation rows judge it, and when it need not go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commonground.config import RunConfig
from commonground.engine.progress import Progress
from commonground.tasks import Task

__all__ = ["EarlyStopping", "validation_key"]


def validation_key(task: Task) -> str:
    """The field of a round's line with the mean of the task's headline metric over clients on their validation rows."""
    return f"validation_{task.metric}"


class EarlyStopping:
    """Keeps the best tested round of a run, and says when patience has run out.

    What it knows is in the run's history and totals alone, which checkpoints hold, so that a run that was killed goes
    on as one that was not.

    Args:
        config: of the run; ``early_stopping`` is the patience, in tests on validation rows.
        task: says which metric, and which of two values is better.
        progress: of the run.
    """

    def __init__(self, config: RunConfig, task: Task, progress: Progress) -> None:
        self.patience, self.task, self.progress = config.early_stopping, task, progress

    @property
    def best(self) -> int | None:
        """The round with the best value so far, the first of equal ones; None where there is none, or nobody asked."""
        found = self.progress.totals.get("best_round") if self.patience is not None else None
        return None if found is None else int(found)

    def saw(self, row: Mapping[str, Any]) -> bool:
        """Take note of a finished round.

        Returns:
            Whether it is the best one so far, so that its models have to be kept.
        """
        value = row.get(validation_key(self.task))
        if self.patience is None or value is None:
            return False
        if self.best is not None:
            before = self._value(self.best)
            if not (value > before if self.task.higher_is_better else value < before):
                return False
        self.progress.totals["best_round"] = row["round"]
        return True

    @property
    def exhausted(self) -> bool:
        """Whether so many tests in a row have shown nothing better."""
        if self.patience is None or self.best is None:
            return False
        later = self.progress.history[self.best :]
        return sum(row.get(validation_key(self.task)) is not None for row in later) >= self.patience

    def _value(self, round: int) -> float:
        return float(self.progress.history[round - 1][validation_key(self.task)])

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` tells of it."""
        if self.best is None:
            return {}
        told = {
            "patience": self.patience,
            "metric": validation_key(self.task),
            "best_round": self.best,
            "value": self._value(self.best),
            "ended_early": self.exhausted,
        }
        return {"early_stopping": told}

    def sentence(self) -> str:
        """The same for people."""
        done, best = self.progress.done, self.best
        why = (
            f"no better {validation_key(self.task).replace('_', ' ')} in {self.patience} tests; "
            if self.exhausted
            else ""
        )
        return f"{why}the models kept are those of round {best} of {done}"
