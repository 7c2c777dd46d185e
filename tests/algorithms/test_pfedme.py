"""pFedMe against NumPy written from Dinh et al. 2020, Algorithm 1, in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from commonground.algorithms import Server, Update
from commonground.algorithms.pfedme import PFedMe
from commonground.engine.loop import sample_clients
from commonground.errors import ConfigError
from tests.algorithms.one_number import OneNumber
from tests.algorithms.reference import (
    ALL,
    EPOCHS,
    LR,
    SETTINGS,
    Weights,
    gradient,
    loss,
    mean,
    network,
    plan_batches,
    problem,
    start,
)
from tests.helpers import ENGINES, assert_tensors_close, made_data, normed, seeded, train_whole

LAMBDA, K, ETA, BETA, DECAY, ROUNDS = 1.5, 3, 0.2, 1.4, 0.05, 2
SIZES = (5, 3, 8, 2, 6)
METHOD = PFedMe(strength=LAMBDA, inner_steps=K, envelope_lr=ETA, server_step=BETA)


def rounds_by_hand(participants: list[list[int]]) -> tuple[Weights, list[Weights]]:
    """w and every client's θ_i after the rounds of these clients."""
    data, w = problem(SIZES), start()
    own = [start() for _ in SIZES]
    for t, chosen in enumerate(participants, 1):
        sent = []
        for i in chosen:
            mine, theta = dict(w), dict(w)
            for x, y in plan_batches(data, i, t, 1, epochs=EPOCHS):
                for _ in range(K):
                    g = gradient(theta, x, y)
                    for n in ALL:
                        theta[n] = theta[n] - LR * (g[n] + LAMBDA * (theta[n] - mine[n]) + DECAY * theta[n])
                for n in ALL:
                    mine[n] = mine[n] - ETA * LAMBDA * (mine[n] - theta[n])
            own[i] = theta
            sent.append(mine)
        average = mean(sent, [1.0] * len(sent))
        w = {n: (1 - BETA) * w[n] + BETA * average[n] for n in ALL}
    return w, own


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds(engine: str) -> None:
    data = problem(SIZES)
    settings = SETTINGS | {"engine": engine, "rounds": ROUNDS, "participation": 0.6, "weight_decay": DECAY}
    got = train_whole(METHOD, data, model=network(), **settings)
    chosen = [sample_clients(got.run.config, len(SIZES), t) for t in range(1, ROUNDS + 1)]
    w, own = rounds_by_hand([[int(c) for c in each] for each in chosen])
    assert_tensors_close(got.run.shared, w, 1e-12)
    for c, wanted in enumerate(own):
        assert_tensors_close(got.personal[c], {f"own/{n}": v for n, v in wanted.items()}, 1e-12)
        rows = data.test_indices(c)  # tested with θ_i
        assert got.run.clients[c]["test_loss"] == pytest.approx(loss(wanted, data.x_test[rows], data.y_test[rows]))


def test_momentum_does_not_matter() -> None:
    one, other = (train_whole(METHOD, problem(), model=network(), **(SETTINGS | {"momentum": m})) for m in (0.0, 0.5))
    assert one.sha == other.sha
    with pytest.raises(ConfigError, match=r"--momentum 0\.9 says nothing to pFedMe: its steps are plain"):
        train_whole(METHOD, problem(), model=network(), **(SETTINGS | {"momentum": 0.9}))


def test_a_client_by_hand() -> None:
    """A loss of slope 2, w = 1, α = 0.1, λ = 5, η = 0.1. Two steps on θ: 1 − 0.1 · 2 = 0.8, then
    0.8 − 0.1 · (2 + 5 · (0.8 − 1)) = 0.7; then w = 1 − 0.1 · 5 · (1 − 0.7) = 0.85.
    """
    one = OneNumber(2.0, 1, received=1.0, state={"own/w": torch.tensor(7.0)})
    sent = PFedMe(strength=5.0, inner_steps=2, envelope_lr=0.1).client_update(one.client, 1)
    assert sent["w"].item() == pytest.approx(0.85)
    assert one.state["own/w"].item() == pytest.approx(0.7)


def test_the_server_by_hand() -> None:
    """β of the way to the mean."""
    server = Server({"w": torch.tensor([1.0]), "1.running_var": torch.tensor([1.0])}, {}, buffers=("1.running_var",))
    sent = [
        Update(k, 1, {"w": torch.tensor([v]), "1.running_var": torch.tensor([3.0])}) for k, v in enumerate((2.0, 4.0))
    ]
    PFedMe(server_step=2.0).server_update(server, sent, 1)
    assert server.shared["w"].tolist() == [5.0]  # 1 + 2 · (3 − 1)
    assert server.shared["1.running_var"].tolist() == [3.0]  # a statistic is averaged: it could become negative


def test_batch_norm_statistics_are_those_of_the_personal_model() -> None:
    got = train_whole(METHOD, made_data((8,), dtype=np.float32), model=seeded(normed), rounds=1, batch_size=8, lr=0.05)
    for name in ("1.running_mean", "1.running_var"):
        assert torch.equal(got.run.shared[name], got.personal[0][f"own/{name}"])
    assert not torch.equal(got.run.shared["1.running_mean"], torch.zeros(6))
    assert not torch.equal(got.run.shared["0.weight"], got.personal[0]["own/0.weight"])
