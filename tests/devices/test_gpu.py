"""Runs on an accelerator beside the same runs on the CPU (``make test-gpu``); skipped where there is none.

``COMMONGROUND_TEST_DEVICE`` names another device, so that the tests themselves can be tried on a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground import Run, train
from commonground.algorithms import registry
from commonground.engine.clients.step_graphs import StepGraphs
from commonground.models import MLP, ConvNet, ResNet18
from tests.helpers import Dropping, TwoLayer, fitting, images, made_data, seeded, suited
from tests.language import tiny_model, token_data

DEVICE = os.environ.get("COMMONGROUND_TEST_DEVICE", "cuda")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="there is no GPU"),
]

ALGORITHMS = sorted(registry)
SIZES = (5, 3, 8, 2, 6)


@cache
def _run(method: str, engine: str, device: str, dtype: str = "float64") -> Run:
    return train(
        method, made_data(SIZES), model=suited(method, seeded(TwoLayer)), engine=engine, device=device, dtype=dtype,
        rounds=3, participation=0.8, seed=1, **fitting(method, {"batch_size": 4, "weight_decay": 1e-3}),
    )  # fmt: skip


def close(one: Run, other: Run, tolerance: float) -> None:
    for name, value in one.shared.items():
        torch.testing.assert_close(other.shared[name].cpu(), value.cpu(), rtol=tolerance, atol=tolerance)
    for key in ("train_loss", "personal_accuracy"):
        mine, theirs = ([row[key] for row in run.history] for run in (one, other))
        np.testing.assert_allclose(np.array(theirs, float), np.array(mine, float), rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("engine", ["serial", "batched", "messages"])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_every_method_is_the_same_in_float64(method: str, engine: str) -> None:
    close(_run(method, "serial", "cpu"), _run(method, engine, DEVICE), 1e-8)


@pytest.mark.parametrize("method", ALGORITHMS)
def test_and_near_in_float32(method: str) -> None:
    close(_run(method, "serial", "cpu", "float32"), _run(method, "batched", DEVICE, "float32"), 2e-3)


@pytest.mark.parametrize("augment", ["none", "flip-crop"])
@pytest.mark.parametrize("method", ["fedrep", "fedavg", "flute", "perfedavg", "ditto"])
def test_convolutions_with_dropout(method: str, augment: str) -> None:
    def one(engine: str, device: str) -> Run:
        net = seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5), dropout=0.3)
        return train(
            method, images(), model=net, engine=engine, device=device, dtype="float64", rounds=2, batch_size=4,
            augment=augment, feature_noise=0.1,
        )  # fmt: skip

    close(one("serial", "cpu"), one("auto", DEVICE), 1e-7)


@pytest.mark.parametrize("statistics", ["averaged", "local"])
def test_batch_norm(statistics: str) -> None:
    def one(device: str) -> Run:
        net = seeded(ResNet18, (2, 16, 16), 3, stem="cifar", width=4, blocks=[1, 1, 1])
        return train(
            "fedrep", images((6, 12, 4)), model=net, engine="serial", device=device, dtype="float64", rounds=2,
            batch_size=4, batch_norm=statistics,
        )  # fmt: skip

    close(one("cpu"), one(DEVICE), 1e-7)


def test_fine_tuning_and_full_metrics() -> None:
    def one(device: str) -> Run:
        return train(
            "fedavg", made_data(SIZES), model=seeded(Dropping), engine="batched", device=device, dtype="float64",
            rounds=2, finetune_epochs=2, metrics="full", server_optimizer="adam", server_lr=0.1,
        )  # fmt: skip

    close(one("cpu"), one(DEVICE), 1e-8)


@pytest.mark.parametrize("kind", ["bert", "llama-lm"])
@pytest.mark.parametrize("method", ["lora", "rolora", "flora"])
def test_language_models(method: str, kind: str, tmp_path: Path) -> None:
    name = tiny_model(kind, tmp_path / kind)
    data = token_data(language=kind == "llama-lm")

    def one(device: str) -> Run:
        options = {"rank": 2, "layers": "1-2", "dropout": 0.1}
        return train(
            method, data, model=name, model_options=options, engine="batched", device=device, rounds=2, batch_size=3
        )

    close(one("cpu"), one(DEVICE), 2e-3)


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model": "mlp", "model_options": {"hidden": [8]}, "clients": 6, "classes_per_client": 2, "device": DEVICE,
        "engine": "batched", "seed": 3,
    }  # fmt: skip
    rows: list[Any] = []

    class Stop(Exception):
        pass

    class Stopping:
        def begin(self, *args: Any) -> None: ...
        def note(self, text: str) -> None: ...
        def end(self) -> None: ...
        def round(self, row: Any) -> None:
            rows.append(row)
            if len(rows) == 2:
                raise Stop

    whole = train("ditto", "digits", rounds=4, out=tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        train("ditto", "digits", rounds=4, out=tmp_path / "parts", observer=Stopping(), **settings)
    parts = train("ditto", "digits", rounds=4, out=tmp_path / "parts", resume=True, **settings)
    if DEVICE == "cpu":
        assert whole.summary["weights_sha256"] == parts.summary["weights_sha256"]
    close(whole, parts, 1e-5)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for every step that is recorded as a graph."""
    found: list[int] = []
    record = StepGraphs.record

    def counted(graphs: StepGraphs, function: Callable[[], Any]) -> Any:
        made = record(graphs, function)
        found.append(1)
        return made

    monkeypatch.setattr(StepGraphs, "record", counted)
    return found


@pytest.mark.parametrize(
    "method", ["fedrep", "fedavg", "flute", "fedprox", "scaffold", "ditto", "moon", "fedproto", "fedrod", "feddyn"]
)
@pytest.mark.parametrize("kind", ["chain", "convolutions"])
def test_recorded_steps_of_unequal_clients(method: str, kind: str, recorded: list[int]) -> None:
    """Clients of one to four batches an epoch, whose last one is shorter; dropout and changed images."""

    def one(engine: str, device: str) -> Run:
        settings = fitting(method, {"batch_size": 3, "local_epochs": 4, "weight_decay": 1e-3})
        if kind == "chain":
            data, model = made_data(SIZES), suited(method, seeded(MLP, (4,), 3, hidden=[6]))
        else:
            net = seeded(ConvNet, (2, 16, 16), 3, channels=(3, 4), hidden=(6, 5), dropout=0.3)
            data, model = images((7, 12, 4)), suited(method, net, (2, 16, 16))
            settings["augment"] = "flip-crop"
        return train(
            method, data, model=model, engine=engine, device=device, dtype="float64", rounds=2, seed=2,
            **settings,
        )  # fmt: skip

    close(one("serial", "cpu"), one("batched", DEVICE), 1e-7)
    assert recorded or DEVICE == "cpu"


def test_recorded_steps_with_batch_norm(recorded: list[int]) -> None:
    def one(engine: str, device: str) -> Run:
        net = seeded(ResNet18, (2, 16, 16), 3, stem="cifar", width=4, blocks=[1, 1, 1])
        return train(
            "fedavg", images((6, 12, 4)), model=net, engine=engine, device=device, dtype="float64", rounds=2,
            batch_size=4, local_epochs=4,
        )  # fmt: skip

    close(one("serial", "cpu"), one("batched", DEVICE), 1e-7)
    assert recorded or DEVICE == "cpu"
