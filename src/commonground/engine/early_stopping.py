"""Which round's models a run ends with when validation rows judge it, and when it need not go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commonground.config import RunConfig
from commonground.counted import counted
from commonground.engine.progress import Progress
from commonground.tasks import Rank

__all__ = ["EarlyStopping", "validation_key"]


def validation_key(metric: str) -> str:
    """The field of a round's line with the mean of a metric over clients on their validation rows."""
    return f"validation_{metric}"


class EarlyStopping:
    """Keeps the best tested round of a run, and says when patience has run out.

    What it knows is in the run's history and totals alone, which checkpoints hold, so that a run that was killed goes
    on as one that was not.

    Args:
        config: of the run; ``early_stopping`` is the patience, in tests on validation rows.
        rank: says which metric, and which of two values is better.
        progress: of the run.
    """

    def __init__(self, config: RunConfig, rank: Rank, progress: Progress) -> None:
        self.patience, self.rank, self.progress = config.early_stopping, rank, progress
        self.key = validation_key(rank.key)

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
        value = row.get(self.key)
        if self.patience is None or value is None:
            return False
        if self.best is not None and not self.rank.better(value, self._value(self.best)):
            return False
        self.progress.totals["best_round"] = row["round"]
        return True

    @property
    def exhausted(self) -> bool:
        """Whether so many tests in a row have shown nothing better."""
        if self.patience is None or self.best is None:
            return False
        later = self.progress.history[self.best :]
        return sum(row.get(self.key) is not None for row in later) >= self.patience

    def _value(self, round: int) -> float:
        return float(self.progress.history[round - 1][self.key])

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` tells of it."""
        if self.best is None:
            return {}
        told = {
            "patience": self.patience,
            "metric": self.key,
            "best_round": self.best,
            "value": self._value(self.best),
            "ended_early": self.exhausted,
        }
        return {"early_stopping": told}

    def sentence(self) -> str:
        """The same for people."""
        done, best = self.progress.done, self.best
        why = (
            f"no better {self.key.replace('_', ' ')} in {counted(self.patience or 0, 'test')}; "
            if self.exhausted
            else ""
        )
        return f"{why}the models kept are those of round {best} of {done}"
