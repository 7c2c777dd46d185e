"""Runs of more clients than all digits are kept of, in the last test and what is told of it."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from commonground import Run, train
from commonground.engine.results import GlobalTest
from commonground.engine.scores import Scores
from tests.engine.test_scale import tiny_clients

CLIENTS = 40
FIGURES = ("personal_accuracy", "personal_auc", "personal_nll", "global_accuracy", "test_loss")
WAYS: dict[str, dict[str, Any]] = {
    "own models": {"algorithm": "ditto"},
    "no global model": {"algorithm": "local"},
    "the shared one": {"algorithm": "fedavg"},
    "tuned": {"algorithm": "fedavg", "finetune_epochs": 1},
    "a panel before": {"algorithm": "ditto", "eval_clients": 5},
    "a sample": {"algorithm": "ditto", "eval_clients": 5, "final_eval_clients": 20},
}


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few are many."""
    for module in ("narrow", "scores", "client_rows"):
        monkeypatch.setattr(f"commonground.engine.{module}.MANY", CLIENTS - 1)


def run_of(way: str, engine: str) -> Run:
    flags = {"model": "linear", "rounds": 2, "participation": 0.2, "eval_every": 1, **WAYS[way]}
    return train(data=tiny_clients(CLIENTS), engine=engine, **flags)


def kept(run: Run) -> dict[str, np.dtype[Any]]:
    """As what the clients' figures are kept that have one."""
    columns = run.clients._columns  # type: ignore[attr-defined]
    return {name: columns[name].dtype for name in FIGURES if isinstance(columns.get(name), np.ndarray)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ["serial", "batched", "messages"])
def test_figures_are_kept_as_float32_by_every_engine(
    way: str, engine: str, many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(way, engine)
    kinds = kept(run)
    assert {"personal_accuracy", "test_loss"} <= set(kinds)
    assert set(kinds.values()) == {np.dtype(np.float32)}
    monkeypatch.undo()
    exact = run_of(way, engine)
    assert set(kept(exact).values()) == {np.dtype(np.float64)}
    assert exact.summary["weights_sha256"] == run.summary["weights_sha256"]
    assert exact.summary["metrics"]["accuracy"]["over_rows"] == run.summary["metrics"]["accuracy"]["over_rows"]
    for name in kinds:
        np.testing.assert_allclose(run.clients.numbers(name), exact.clients.numbers(name), rtol=1e-7)


@pytest.mark.parametrize("way", ["own models", "tuned", "a panel before"])
def test_the_global_models_scores_are_gone_before_each_clients_own_are_tested(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a million clients, both at once would take twice the room."""
    told: list[bool] = []
    beside: list[int] = []
    of, among = GlobalTest.of, Scores.among

    def noticed(scores: Scores, least_rows: int) -> GlobalTest:
        told.append(True)
        return of(scores, least_rows)

    def next_one(self: Scores, clients: Sequence[int]) -> Scores:
        if told:
            told.clear()
            beside.append(len(_scores_held()) - len(before) - 1)
        return among(self, clients)

    monkeypatch.setattr(GlobalTest, "of", noticed)
    monkeypatch.setattr(Scores, "among", next_one)
    before = _scores_held()
    run = run_of(way, "serial")
    assert run.summary["global_accuracy"] is not None
    assert beside == [0]


def _scores_held() -> list[Scores]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Scores]
