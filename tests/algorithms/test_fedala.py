"""FedALA against NumPy written from Zhang et al. 2023, Algorithm 1, in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from commonground.algorithms.fedala import ROUNDS as COUNT
from commonground.algorithms.fedala import FedALA
from commonground.engine.clients.batches import batch_schedule
from commonground.engine.loop import sample_clients
from tests.algorithms.one_number import OneNumber
from tests.algorithms.reference import (
    ALL,
    EPOCHS,
    HEAD,
    SETTINGS,
    Weights,
    gradient,
    loss,
    mean,
    network,
    plan_batches,
    problem,
    sgd,
    start,
)
from tests.helpers import ENGINES, assert_tensors_close, made_data, normed, seeded, train_whole

SIZES = (5, 3, 8, 2, 6)
SHARE, ETA, FIRST, ROUNDS = 0.7, 2.0, 3, 4


class Reference:
    """The federation in plain NumPy.

    Args:
        upper: names of the tensors in the p highest layers.
    """

    def __init__(self, upper: tuple[str, ...]) -> None:
        self.upper, self.data = upper, problem(SIZES)
        self.shared = start()
        self.own = [{n: start()[n] for n in upper} for _ in SIZES]
        self.mix = [{n: np.ones_like(start()[n]) for n in upper} for _ in SIZES]
        self.count = [0] * len(SIZES)

    def initialised(self, i: int, t: int) -> tuple[Weights, Weights]:
        """Θ̂_i and W_i."""
        epochs = (0, FIRST)[self.count[i]] if self.count[i] < 2 else 1
        own, mix, w = self.own[i], dict(self.mix[i]), dict(self.shared)
        for x, y in plan_batches(self.data, i, t, 1, epochs=epochs, share=SHARE):
            w |= {n: own[n] + (self.shared[n] - own[n]) * mix[n] for n in self.upper}
            g = gradient(w, x, y)
            mix = {n: np.clip(mix[n] - ETA * g[n] * (self.shared[n] - own[n]), 0, 1) for n in self.upper}
            w |= {n: own[n] + (self.shared[n] - own[n]) * mix[n] for n in self.upper}
        return w, mix

    def round(self, t: int, chosen: list[int]) -> None:
        sent = []
        for i in chosen:
            w, self.mix[i] = self.initialised(i, t)
            sent.append(sgd(w, ALL, plan_batches(self.data, i, t, 2, epochs=EPOCHS)))
            self.own[i], self.count[i] = {n: sent[-1][n] for n in self.upper}, self.count[i] + 1
        self.shared = mean(sent, [1.0] * len(sent))


@pytest.mark.parametrize(("layers", "upper"), [(1, HEAD), (9, ALL)])
@pytest.mark.parametrize("engine", ENGINES)
def test_rounds(engine: str, layers: int, upper: tuple[str, ...]) -> None:
    """Clients in their first, second and later round side by side."""
    settings = SETTINGS | {"engine": engine, "rounds": ROUNDS, "participation": 0.6}
    method = FedALA(layers=layers, share=SHARE, weight_lr=ETA, first_epochs=FIRST)
    got = train_whole(method, problem(SIZES), model=network(), **settings)
    reference = Reference(upper)
    for t in range(1, ROUNDS + 1):
        reference.round(t, [int(c) for c in sample_clients(got.run.config, len(SIZES), t)])
    assert {0, 1, 2, 3} & set(reference.count) >= {1, 3}
    assert_tensors_close(got.run.shared, reference.shared, 1e-12)
    assert any(((m > 0) & (m < 1)).any() for mix in reference.mix for m in mix.values()), "weights did move"
    for i, mine in enumerate(got.personal):
        wanted: dict[str, Any] = {f"own/{n}": v for n, v in reference.own[i].items()}
        wanted |= {f"mix/{n}": v for n, v in reference.mix[i].items()} | {COUNT: np.array(reference.count[i])}
        assert_tensors_close(mine, wanted, 1e-12)
        rows = reference.data.test_indices(i)  # tested with Θ̂_i of the last global model
        tested = loss(reference.initialised(i, ROUNDS)[0], reference.data.x_test[rows], reference.data.y_test[rows])
        assert got.run.clients[i]["test_loss"] == pytest.approx(tested, abs=1e-10)


def test_a_first_round_is_fedavg() -> None:
    """A client that has trained nothing yet has no model of its own to mix in. (One full batch: batches have keys.)"""
    full = SETTINGS | {"batch_size": 8, "local_epochs": 1}
    one, other = (train_whole(m, problem(), model=network(), **full) for m in ("fedala", "fedavg"))
    assert_tensors_close(one.run.shared, other.run.shared, 1e-14)


@pytest.mark.parametrize(
    ("count", "batches", "weight", "mixed"),
    [
        (0, 1, 1.0, 3.0),  # nothing of its own: Θ
        (1, 1, 0.5, 2.0),  # first_epochs of one batch each
        (2, 1, 0.75, 2.5),
        (2, 3, 0.25, 1.5),
        (2, 9, 0.0, 1.0),  # clipped
    ],
)
def test_the_weights_by_hand(count: int, batches: int, weight: float, mixed: float) -> None:
    """Θ_i = 1, Θ = 3, the loss has slope ¼ and η = ½: every batch takes ½ · ¼ · (3 − 1) = ¼ off W."""
    state = {"own/w": torch.tensor(1.0), "mix/w": torch.tensor(1.0), COUNT: torch.tensor(count)}
    one = OneNumber(0.25, batches, received=3.0, state=state)
    sent = FedALA(weight_lr=0.5, first_epochs=2).client_update(one.client, 1)
    assert (one.state["mix/w"].item(), sent["w"].item()) == (weight, mixed)
    assert (one.state["own/w"].item(), one.state[COUNT].item()) == (mixed, count + 1)


def test_batch_norm_statistics_are_not_mixed() -> None:
    got = train_whole(
        "fedala", made_data((6, 4, 8), dtype=np.float32), model=seeded(normed), rounds=3, options={"layers": 3}
    )
    for mine in got.personal:
        assert (mine["mix/1.running_var"] == 1).all()
    assert any((mine["mix/3.weight"] != 1).any() for mine in got.personal)


def test_a_share_of_the_samples() -> None:
    """The same samples in each epoch, at least one, and others in another call."""
    key = {"seed": 1, "client": 2, "size": 10, "batch_size": 3, "epochs": 2}
    plan = batch_schedule(round=1, phase=1, share=0.75, **key)
    assert plan.counts.tolist() == [3, 3, 1, 3, 3, 1]
    epochs = [sorted(plan.order[rows][plan.order[rows] >= 0]) for rows in (slice(0, 3), slice(3, 6))]
    assert epochs[0] == epochs[1]
    assert len(set(epochs[0])) == 7
    other = batch_schedule(round=2, phase=1, share=0.75, **key)
    assert set(other.order.ravel()) != set(plan.order.ravel())
    assert batch_schedule(1, 1, 2, 1, size=1, batch_size=3, epochs=1, share=0.1).counts.tolist() == [1]
