"""No setting is passed over in silence: another value gives another model, or is refused in a sentence."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import nn

import commonground as cg
from commonground.algorithms import registry
from commonground.errors import ConfigError
from tests.helpers import made_data

OTHERS: dict[str, Any] = {
    "participation": 0.5,
    "local_epochs": 2,
    "local_steps": 3,
    "batch_size": 3,
    "lr": 0.003,
    "optimizer": "adam",
    "head_lr": 0.3,
    "body_lr": 0.3,
    "warmup": 1,
    "clip_norm": 0.01,
    "momentum": 0.2,
    "weight_decay": 0.3,
    "class_weights": "balanced",
    "lr_schedule": "cosine",
    "weighting": "samples",
    "aggregate": "median",
    "server_optimizer": "momentum",
    "finetune_epochs": 2,
}
"""Settings of every method's training, with values that are not the usual ones."""

OPTIONS: dict[str, dict[str, Any]] = {"l2gd": {"p": 0.5, "alpha": 2.0}, "fedala": {"first_epochs": 2}}
"""Hyperparameters with which two rounds show what settings do (L2GD: one of averaging) in little time."""

METHODS = sorted(registry)


@cache
def data() -> cg.FederatedDataset:
    return made_data((14, 12, 18, 20), classes=3, dtype=np.float32)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def models(method: str, **changed: Any) -> list[bytes]:
    """Everything a run has trained: the shared tensors and every client's own model."""
    settings: dict[str, Any] = {"rounds": 2, "lr": 0.1, "engine": "serial", "options": OPTIONS.get(method, {})}
    run = cg.train(method, data(), model=network(), **settings | changed)
    own = [value for client in range(4) for value in run.model(client).state_dict().values()]
    return [value.numpy().tobytes() for value in (*run.trained.shared.values(), *own)]


@cache
def usual(method: str) -> list[bytes]:
    return models(method)


@pytest.mark.parametrize("setting", OTHERS)
@pytest.mark.parametrize("method", METHODS)
def test_another_value_gives_another_model_or_is_refused(method: str, setting: str) -> None:
    got, said = None, ""
    try:
        got = models(method, **{setting: OTHERS[setting]})
    except ConfigError as error:
        said = str(error)
    assert f"--{setting.replace('_', '-')}" in said if got is None else got != usual(method)


@pytest.mark.parametrize("setting", ["batch_size", "momentum", "weight_decay"])
@pytest.mark.parametrize("method", [m for m in METHODS if registry[m].unused and registry[m]().has_global_model])
def test_what_fine_tuning_takes_changes_the_tuned_models(method: str, setting: str) -> None:
    """Also of a method whose own rounds do not take it (FedSGD's batch size)."""
    value = {"momentum": 0.9}.get(setting, OTHERS[setting])
    tuned = models(method, finetune_epochs=2)
    assert models(method, finetune_epochs=2, **{setting: value}) != tuned
