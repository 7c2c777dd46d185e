"""Which metric ranks: the headline, unless a user says otherwise."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from commonground.errors import ConfigError
from commonground.suggest import meant
from commonground.tasks.base import Task

__all__ = ["Rank", "assumed_way", "is_share", "less_is_better"]

_LESS = ("rmse", "mse", "mae", "log_loss", "calibration_error", "perplexity")
_SHARES = ("f1", "macro_f1", "calibration_error")


def less_is_better(metric: str) -> bool:
    """Whether less of one of our metrics is better."""
    return metric in _LESS


def is_share(metric: str) -> bool:
    """Whether one of our metrics is a share, written in percent."""
    return "accuracy" in metric or metric in _SHARES


def assumed_way(text: str | None, own: Collection[str]) -> str:
    """A sentence where a metric of the user's ranks and nobody said whether more of it is better; empty otherwise."""
    if text is None or text not in own:
        return ""
    return f"More of {text} counts as better; if less is, say --rank-by {text}:lower."


@dataclass(frozen=True)
class Rank:
    """A metric by which models are ranked.

    Attributes:
        key: its name.
        higher_is_better: whether more of it is better.
    """

    key: str
    higher_is_better: bool

    @classmethod
    def of(cls, text: str | None, task: Task, own: Collection[str] = ()) -> Rank:
        """The metric that a setting names, the task's headline where it names none.

        Args:
            text: ``NAME``, or ``NAME:lower`` or ``NAME:higher`` for a metric of the user's, of which more is better
                otherwise.
            task: whose metrics there are.
            own: names of the user's metrics.

        Raises:
            ConfigError: there is no such metric, or a direction does not fit.
        """
        if text is None:
            return cls(task.metric, task.higher_is_better)
        name, colon, way = text.partition(":")
        known = (*task.figures, *own)
        if name not in known:
            raise ConfigError(f"--rank-by {name} is no metric of {task.name}{meant(name, known)}; known are "
                              f"{', '.join(known)}")  # fmt: skip
        if colon and (way not in ("lower", "higher") or name not in own):
            raise ConfigError(f"--rank-by {text}: only a metric of your own is followed by :lower or :higher")
        if name == task.metric:
            return cls(name, task.higher_is_better)
        return cls(name, way != "lower" if name in own else not less_is_better(name))

    def better(self, value: float, than: float) -> bool:
        """Whether a value is the better one."""
        return value > than if self.higher_is_better else value < than
