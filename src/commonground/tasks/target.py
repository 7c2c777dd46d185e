"""A value of a task's metric that is to be reached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commonground.errors import ConfigError
from commonground.tasks.headline import Headline
from commonground.tasks.rank import less_is_better

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """A value of the task's own metric, which is known after every round, for runs to reach.

    Attributes:
        metric: the task's metric.
        value: what is to be reached: at least this of a metric of which more is better, at most this of another.

    Raises:
        ConfigError: the value is none that the metric can have: not finite, of a share not between 0 and 1, of an
            error not above 0.
    """

    metric: Headline
    value: float

    def __post_init__(self) -> None:
        share, error = self.metric.percent, less_is_better(self.metric.key)
        if not math.isfinite(self.value) or ((share or error) and self.value <= 0) or (share and self.value > 1):
            such = "above 0 and at most 1, such as 0.8" if share else "above 0" if error else "that is finite"
            raise ConfigError(f"the target {self.value:g} is no {self.metric.name}; give a number {such}")

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Target | None:
        """The target of what ``comparison.json`` holds; None if it has none."""
        task = {key: result[key] for key in ("task",) if key in result}
        return None if result.get("target") is None else cls(Headline.of(task), result["target"])

    @property
    def key(self) -> str:
        """Under which a method's entry has what it costs: ``to_accuracy``, ``to_rmse``."""
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
        """Whether a value is as good as the target, but for the last bits of a mean."""
        if value is None:
            return False
        better = self.metric.from_worst(value) > self.metric.from_worst(self.value)
        return better or math.isclose(value, self.value, rel_tol=1e-12)
