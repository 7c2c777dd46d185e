"""MLflow and Weights & Biases themselves, where somebody has installed them; nothing here asks the network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import commonground as cg
from tests.helpers import made_data

DATA = made_data((5, 6, 7), dtype=np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:(?!.*tracks no more)")  # what they tell themselves


def in_two_parts(tracker: str, out: Path) -> cg.Run:
    cg.train("fedrep", DATA, rounds=3, out=out, track=tracker, on_round=lambda row: row["round"] < 2)
    return cg.train("fedrep", DATA, rounds=3, out=out, track=tracker, resume=True)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = in_two_parts("mlflow", tmp_path / "run")
    client = mlflow.MlflowClient()
    (tracked,) = client.search_runs(["0"])
    history = client.get_metric_history(tracked.info.run_id, "share/personal_accuracy")
    assert {m.step: m.value for m in history} == {r["round"]: r["personal_accuracy"] for r in run.history}
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["algorithm"] == "fedrep"
    assert [file.path for file in client.list_artifacts(tracked.info.run_id)] == ["summary.json"]


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("NETRC", str(tmp_path / "no-keys"))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    run = in_two_parts("wandb", tmp_path / "run")
    kept = list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(kept) == 2  # a part each, under one id
    assert len({file.name for file in kept}) == 1
    assert run.finished
