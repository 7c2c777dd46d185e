"""Stand-ins for MLflow and Weights & Biases, which are some forty packages: the calls that are used, with the rules
that the real ones enforce (mlflow-skinny 3.17 and wandb 0.31). test_real_trackers.py asks the real ones where they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

# -- MLflow -----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    name: str
    status: str = "RUNNING"
    nested: bool = False
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    files: dict[str, str] = field(default_factory=dict)

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(run_id=self.name)

    @property
    def data(self) -> SimpleNamespace:
        latest = {key: points[max(points)] for key, points in self.metrics.items()}
        return SimpleNamespace(params=dict(self.params), metrics=latest)


@dataclass
class MlflowServer:
    """What an MLflow server knows."""

    runs: dict[str, Run] = field(default_factory=dict)
    open: list[Run] = field(default_factory=list)
    failing: str = ""

    def start_run(self, run_id: str | None = None, run_name: str | None = None, nested: bool = False) -> Run:
        if self.open and not nested:
            raise RuntimeError(f"Run with UUID {self.open[-1].name} is already active. To start a new run, end it.")
        if run_id is not None and run_id not in self.runs:
            raise RuntimeError(f"Run '{run_id}' not found")
        if run_id is None:
            run_id = f"run-{len(self.runs)}"
            self.runs[run_id] = Run(run_id, nested=nested)
        self.runs[run_id].status = "RUNNING"
        self.open.append(self.runs[run_id])
        return self.runs[run_id]

    def end_run(self, status: str = "FINISHED") -> None:
        assert status in ("FINISHED", "FAILED", "KILLED")
        if self.open:
            self.open.pop().status = status

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100, "INVALID_PARAMETER_VALUE: at most 100 parameters in a batch"
        if self.failing == "log_batch" and metrics:
            raise ConnectionError("no route to host\nMax retries exceeded")
        run = self.runs[run_id]
        for one in params:
            assert isinstance(one.value, str)
            assert run.params.setdefault(one.key, one.value) == one.value, "parameters cannot be changed"
        for one in metrics:
            assert re.fullmatch(r"[/\w.\- :]+", one.key), f"Invalid metric name: {one.key}"
            assert isinstance(one.value, float)
            assert isinstance(one.step, int)
            assert one.step not in run.metrics[one.key], "MLflow would have two values of a round"
            run.metrics[one.key][one.step] = one.value

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [SimpleNamespace(step=step, value=value) for step, value in self.runs[run_id].metrics[key].items()]

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.runs[run_id].tags[key] = value

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        self.runs[run_id].files[artifact_file] = text

    def log_artifact(self, run_id: str, local_path: str) -> None:
        self.runs[run_id].files[Path(local_path).name] = Path(local_path).read_text("utf-8")


def mlflow_module(server: MlflowServer) -> dict[str, ModuleType]:
    mlflow, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    vars(entities).update(
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step),
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
    )
    vars(mlflow).update(
        entities=entities,
        active_run=lambda: server.open[-1] if server.open else None,
        start_run=server.start_run,
        end_run=server.end_run,
        get_tracking_uri=lambda: "stand-in",
        MlflowClient=lambda: server,
    )
    return {"mlflow": mlflow, "mlflow.entities": entities}


# -- Weights & Biases -------------------------------------------------------------------------------------------------


@dataclass
class WandbRun:
    id: str
    arguments: Mapping[str, Any]
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    exit_code: int | None = None
    failing: str = ""

    @property
    def dir(self) -> str:
        return str(Path(self.arguments["dir"] or ".") / "wandb" / f"offline-run-{self.id}")

    url = None

    def log(self, data: dict[str, float], step: int) -> None:
        if self.failing == "log" and step > 1:
            raise OSError(28, "No space left on device")
        assert self.exit_code is None, "Run is finished. The call to `log` will be ignored"
        if self.rows and step < max(self.rows):
            return  # "step is less than the current step; dropping"
        self.rows[step] = data

    def log_artifact(self, artefact: Any) -> None:
        self.files += artefact.files

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@dataclass
class WandbServer:
    runs: list[WandbRun] = field(default_factory=list)
    failing: str = ""

    def init(self, **arguments: Any) -> WandbRun:
        assert arguments["mode"] == "offline", "no test may ask the network"
        assert arguments["reinit"] == "create_new"
        run = WandbRun(arguments["id"] or f"id{len(self.runs)}", arguments, failing=self.failing)
        self.runs.append(run)
        return run


class Artifact:
    def __init__(self, name: str, type: str) -> None:
        assert re.fullmatch(r"[\w.\-]+", name)
        self.files: list[str] = []

    def add_file(self, path: str) -> None:
        self.files.append(Path(path).name)


def wandb_module(server: WandbServer) -> dict[str, ModuleType]:
    wandb = ModuleType("wandb")
    vars(wandb).update(init=server.init, Artifact=Artifact, Settings=lambda **given: json.loads(json.dumps(given)))
    return {"wandb": wandb}


# -- in their place ---------------------------------------------------------------------------------------------------


@contextmanager
def installed(modules: Mapping[str, ModuleType], tracker: str) -> Iterator[None]:
    """As if these were installed, for a tracker that is imported anew."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        patch.delitem(sys.modules, f"commonground.tracking.{tracker}", raising=False)
        yield
        sys.modules.pop(f"commonground.tracking.{tracker}", None)
