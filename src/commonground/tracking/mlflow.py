"""MLflow: a run at the place that ``mlflow.set_tracking_uri`` or ``MLFLOW_TRACKING_URI`` names, else ``mlflow.db``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, Param

from commonground.tracking.base import Started, Tracker

__all__ = ["MLflow", "make"]

_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}  # attempts, seconds
_AT_ONCE = 100  # parameters that a server takes in one message
_LONGEST = 500  # characters of a parameter, which any server takes


class MLflow(Tracker):
    """Settings as parameters, figures by round as metrics, the summary and the report as artefacts.

    The experiment is the one that ``mlflow.set_experiment`` or ``MLFLOW_EXPERIMENT_NAME`` names. Inside a run of the
    user's own it becomes a nested one.
    """

    name = "mlflow"

    def begin(self, about: Started) -> tuple[str, str]:
        """See :class:`~commonground.tracking.Tracker`."""
        for name, value in _PATIENCE.items():  # a server that is gone must not hold the run up for many minutes
            os.environ.setdefault(name, value)
        nested = mlflow.active_run() is not None
        run = mlflow.start_run(run_id=about.id, run_name=None if about.id else about.name, nested=nested)
        self._client, self._id = mlflow.MlflowClient(), str(run.info.run_id)
        settings = [(name, str(value)[:_LONGEST]) for name, value in about.settings.items()]
        known = run.data.params if about.id else {}
        new = [pair for pair in settings if pair[0] not in known]
        for start in range(0, len(new), _AT_ONCE):
            self._client.log_batch(self._id, params=[Param(*pair) for pair in new[start : start + _AT_ONCE]])
        for name, value in settings:  # a parameter cannot be changed: of a run that goes on, the rounds are another
            if known.get(name, value) != value:
                self._client.set_tag(self._id, name, value)
        self._last = self._last_round(run.data.metrics) if about.id else 0
        return self._id, f"{mlflow.get_tracking_uri()}, run {self._id}"

    def _last_round(self, metrics: Mapping[str, float]) -> int:
        """The last round of which figures are there: a run that was killed repeats those after its checkpoint."""
        name = next((name for name in metrics if name.startswith("seconds/")), None)
        history = [] if name is None else self._client.get_metric_history(self._id, name)
        return max((point.step for point in history), default=0)

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        if number > self._last:
            self._metrics(figures, number)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        self._metrics(dict(_numbers("summary", summary)), int(summary["rounds"]))
        self._client.log_text(self._id, json.dumps(summary, indent=2, default=str), "summary.json")

    def artefact(self, path: Path) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        self._client.log_artifact(self._id, str(path))

    def end(self, whole: bool) -> None:
        """See :class:`~commonground.tracking.Tracker`."""
        mlflow.end_run("FINISHED" if whole else "KILLED")

    def _metrics(self, figures: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(name, float(value), now, step) for name, value in figures.items()]
        self._client.log_batch(self._id, metrics=metrics)


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """All numbers within a value, with the way to each as its name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{name}/{key}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def make() -> Tracker:
    """A tracker for one run."""
    return MLflow()
