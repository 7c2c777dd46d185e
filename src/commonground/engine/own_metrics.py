"""Metrics of the user's own: functions by name, and what they tell of a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from commonground.errors import ConfigError, ModelError
from commonground.generators import keyed_generators
from commonground.tasks import FineFigures, OwnMetric, Task
from commonground.tasks.bounds import Bounds, Figures
from commonground.tasks.fine import Counts, share
from commonground.user_code import check_code, check_takes, failing_as, load_object

__all__ = ["OwnFigure", "check_metrics", "metrics_of"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Owner = npt.NDArray[np.int64]


class OwnFigure(FineFigures):
    """A metric of the user's own.

    What gives one number for each row is averaged, over a client's rows and over all rows; what gives one number for a
    set of rows is known of each client alone.

    Args:
        name: of the metric.
        metric: the function.
        task: says what predictions are.
    """

    def __init__(self, name: str, metric: OwnMetric, task: Task) -> None:
        self.names = (name,)
        self.name, self.metric, self.task = name, metric, task

    def of_rows(self, output: Tensor, y: Tensor) -> dict[str, Array]:
        """Predictions and targets."""
        return {"said": self.task.predict(output), "y": y.cpu().numpy()}

    def told(self, rows: Mapping[str, Array], owner: Owner, sets: int) -> tuple[Figures, Counts]:
        """The metric of each set, and the sums of what was told row by row."""
        values = np.full(sets, np.nan)
        total, count = 0.0, 0
        for number in range(sets):
            found = self._values(rows, owner == number)
            values[number] = found.mean()
            if found.ndim:
                total, count = total + float(found.sum()), count + len(found)
        return {self.name: values}, {"sum": np.array(total), "rows": np.array(float(count))}

    def of_counts(self, counts: Counts) -> dict[str, float]:
        """The mean over rows; NaN of a metric of sets."""
        return {self.name: float(share(counts["sum"], counts["rows"]))}

    def bounds(self, outputs: int) -> dict[str, Bounds]:
        """Any sum, and at most one row each."""
        return {"sum": Bounds(), "rows": Bounds(0, 1, True)}

    def _values(self, rows: Mapping[str, Array], chosen: npt.NDArray[np.bool_]) -> Floats:
        """What the user's function says of some rows: one number [], or one for each of them [rows].

        What it draws, as a bootstrap does, is the same for every set, round and run, and no draw of the model's.
        """
        with failing_as(f"the metric '{self.name}' failed"), keyed_generators(0, "metric"):
            said = self.metric(rows["y"][chosen], rows["said"][chosen])
        try:
            if said is None:
                raise TypeError
            found = np.asarray(said, dtype=np.float64)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # PyTorch: a tensor that is elsewhere, or trained
            raise ModelError(
                f"the metric '{self.name}' must give one number, or one for each of {chosen.sum()} rows, not "
                f"what is a {type(said).__name__}"
            ) from None
        if found.shape == (int(chosen.sum()), 1):  # as targets of one number are
            found = found[:, 0]
        if found.shape not in ((), (int(chosen.sum()),)):
            raise ModelError(
                f"the metric '{self.name}' must give one number, or one for each of {chosen.sum()} rows, not an array "
                f"of shape {found.shape}"
            )
        if np.isinf(found).any():
            raise ModelError(f"the metric '{self.name}' gives a value that is infinite")
        return found


def check_metrics(metrics: Mapping[str, OwnMetric], task: Task) -> None:
    """Refuse what is no metric for a task.

    Raises:
        ConfigError: names it.
    """
    for name, metric in metrics.items():
        if not callable(metric):
            raise ConfigError(
                f"the metric '{name}' is a {type(metric).__name__}, not a function of targets and predictions"
            )
        check_takes(metric, f"the metric '{name}'", "targets", "predictions")
        if not name or not name.replace("_", "").isalnum():
            raise ConfigError(f"the metric {name!r} needs a name of letters, digits and underscores")
        if name in (*task.figures, "loss"):
            raise ConfigError(f"the metric '{name}' has the name of one that a run has anyway; call it otherwise")
        if task.generative:
            raise ConfigError(f"the metric '{name}' needs predictions, and a language model's answers are texts")


def metrics_of(text: str | None) -> dict[str, OwnMetric]:
    """Functions that a setting names: ``file.py:function``, or several, separated by commas.

    Raises:
        ConfigError: there is no such function, or two have one name.
    """
    found: dict[str, OwnMetric] = {}
    for part in _parts(text):
        check_code(part, "metric", "metrics={'name': f}")
        name = part.rpartition(":")[2]
        if name in found:
            raise ConfigError(f"two metrics are called '{name}'")
        found[name] = load_object(part, "metric", "function")
    return found


def _parts(text: str | None) -> Iterable[str]:
    return [part for each in (text or "").split(",") if (part := each.strip())]
