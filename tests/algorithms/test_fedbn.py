"""FedBN against a plain loop over torch modules (Li, Jiang, et al. 2021, Algorithm 1)."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commonground import FederatedDataset, train
from commonground.algorithms.fedbn import FedBN
from commonground.engine.loop import sample_clients
from commonground.errors import ModelError
from tests.algorithms.reference import EPOCHS, LR, MOMENTUM, SETTINGS, network, plan_batches, problem
from tests.helpers import ENGINES, Whole, assert_same_run, assert_tensors_close, normed, seeded, train_whole

SIZES, ROUNDS = (6, 4, 8, 2), 3
NORM = ("1.weight", "1.bias", "1.running_mean", "1.running_var")
OWN = {"serial", "processes", "messages"}  # engines that take BatchNorm


def layered() -> nn.Module:
    """A network whose normalisation any engine takes."""

    def make() -> nn.Module:
        layers = OrderedDict(fc=nn.Linear(4, 6), norm=nn.LayerNorm(6), act=nn.Tanh(), head=nn.Linear(6, 3))
        return nn.Sequential(layers)

    return seeded(make)


def rounds_by_hand(model: nn.Module, personal: tuple[str, ...], participants: list[list[int]]) -> Any:
    """The shared tensors and every client's own, by torch modules, optimisers and means."""
    data = problem(SIZES)
    model = model.double()
    kept = [{n: v.clone() for n, v in model.state_dict().items() if n in personal} for _ in SIZES]
    shared = {n: v.clone() for n, v in model.state_dict().items() if n not in personal}
    for t, chosen in enumerate(participants, 1):
        sent: list[dict[str, Tensor]] = []
        for i in chosen:
            mine = deepcopy(model)
            mine.load_state_dict({**shared, **kept[i]})
            steps = torch.optim.SGD(mine.parameters(), LR, MOMENTUM)
            for x, y in plan_batches(data, i, t, 1, epochs=EPOCHS):
                steps.zero_grad()
                F.cross_entropy(mine(torch.from_numpy(x)), torch.from_numpy(y)).backward()
                steps.step()
            state = mine.state_dict()
            kept[i] = {n: state[n].clone() for n in personal}
            sent.append({n: state[n].clone() for n in shared})
        shared = {n: torch.stack([s[n].double() for s in sent]).mean(0) for n in shared}
    return {n: v for n, v in shared.items() if "num_batches" not in n}, kept


def go(model: nn.Module, engine: str, method: Any = "fedbn", **settings: Any) -> Whole:
    values = SETTINGS | {"engine": engine, "rounds": ROUNDS, "participation": 0.75} | settings
    return train_whole(method, problem(SIZES), model=model, **values)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_three_rounds(kind: str, engine: str) -> None:
    make, personal = (lambda: seeded(normed), NORM) if kind == "batch" else (layered, ("norm.weight", "norm.bias"))
    got = go(make(), engine)
    chosen = [[int(c) for c in sample_clients(got.run.config, len(SIZES), t)] for t in range(1, ROUNDS + 1)]
    shared, kept = rounds_by_hand(make(), personal, chosen)
    assert_tensors_close(got.run.shared, shared, 1e-12)
    for mine, wanted in zip(got.personal, kept, strict=True):
        assert_tensors_close(mine, wanted, 1e-12)


def test_by_hand() -> None:
    """One batch (1, 3) through BatchNorm alone: its statistics become 0.2 and 1.1, and nothing of them is sent."""
    layers = OrderedDict(norm=nn.BatchNorm1d(1), head=nn.Linear(1, 2))
    x, y = np.array([[1.0], [3.0]]), np.array([0, 1])
    data = FederatedDataset.from_arrays([(x, y, x, y)], name="two", classes=2)
    got = train_whole("fedbn", data, model=nn.Sequential(layers), rounds=1, dtype="float64")
    assert got.personal[0]["norm.running_mean"].item() == pytest.approx(0.9 * 0 + 0.1 * 2)
    assert got.personal[0]["norm.running_var"].item() == pytest.approx(0.9 * 1 + 0.1 * 2)
    assert set(got.run.shared) == {"head.weight", "head.bias"}
    assert got.run.summary["bytes_up"] == 4 * 8
    assert got.run.summary["global_accuracy"] is None


def test_which_layers() -> None:
    both = OrderedDict(fc=nn.Linear(4, 6), bn=nn.BatchNorm1d(6), ln=nn.LayerNorm(6), head=nn.Linear(6, 3))
    paper = go(seeded(lambda: nn.Sequential(both)), "serial", FedBN(layers="batch"), rounds=1)
    assert {n.split(".")[0] for n in paper.personal[0]} == {"bn"}
    every = go(seeded(lambda: nn.Sequential(both)), "serial", rounds=1)
    assert {n.split(".")[0] for n in every.personal[0]} == {"bn", "ln"}
    group = go(seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3))), "batched", rounds=1)
    assert set(group.personal[0]) == {"1.weight", "1.bias"}


def test_local_statistics_make_no_difference() -> None:
    """They are personal either way."""
    one, other = (go(seeded(normed), "serial", batch_norm=kind) for kind in ("averaged", "local"))
    assert_same_run(one, other, 0.0)


def test_a_head_given_by_pattern_is_kept() -> None:
    run = train("fedbn", problem(SIZES), model=layered(), head="fc", engine="serial", rounds=1, batch_size=4)
    assert run.history


@pytest.mark.parametrize(
    ("model", "layers", "said"),
    [
        (network, "all", "FedBN keeps each client's normalisation layers, and this model has none with weights"),
        (layered, "batch", "FedBN keeps each client's BatchNorm layers, and this model has none with weights"),
        (
            lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, 3)),
            "all",
            "has none with weights that change; choose one that has, such as --model resnet18 or mlp with",
        ),
    ],
)
def test_a_model_without_is_refused(model: Any, layers: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        train(FedBN(layers=layers), problem(), model=model(), rounds=1)
