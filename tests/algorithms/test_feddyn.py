"""FedDyn against NumPy written from Acar et al. 2021, Algorithm 1, in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from commonground.algorithms import Server, Update
from commonground.algorithms.feddyn import FedDyn
from commonground.engine.loop import sample_clients
from tests.algorithms.reference import (
    ALL,
    EPOCHS,
    LR,
    MOMENTUM,
    SETTINGS,
    Weights,
    gradient,
    network,
    plan_batches,
    problem,
    start,
)
from tests.helpers import ENGINES, assert_tensors_close, made_data, normed, seeded, train_whole

ALPHA, ROUNDS = 0.3, 3
SIZES = (5, 3, 8, 2, 6)
PARTIAL = SETTINGS | {"rounds": ROUNDS, "participation": 0.6}


def rounds_by_hand(participants: list[list[int]]) -> tuple[Weights, list[Weights]]:
    """θ and every client's g_k after the rounds of these clients."""
    data, theta = problem(SIZES), start()
    zero = {n: np.zeros_like(v) for n, v in theta.items()}
    g, h = [dict(zero) for _ in SIZES], dict(zero)
    for t, chosen in enumerate(participants, 1):
        trained = []
        for k in chosen:
            w, speed = dict(theta), dict(zero)
            for x, y in plan_batches(data, k, t, 1, epochs=EPOCHS):
                slope = gradient(w, x, y)
                for n in ALL:
                    whole = slope[n] - g[k][n] + ALPHA * (w[n] - theta[n])
                    speed[n] = MOMENTUM * speed[n] + whole
                    w[n] = w[n] - LR * speed[n]
            g[k] = {n: g[k][n] - ALPHA * (w[n] - theta[n]) for n in ALL}
            trained.append(w)
        h = {n: h[n] - ALPHA / len(SIZES) * sum(w[n] - theta[n] for w in trained) for n in ALL}
        theta = {n: sum(w[n] for w in trained) / len(trained) - h[n] / ALPHA for n in ALL}
    return theta, g


@pytest.mark.parametrize("engine", ENGINES)
def test_three_rounds(engine: str) -> None:
    got = train_whole(FedDyn(ALPHA), problem(SIZES), model=network(), **(PARTIAL | {"engine": engine}))
    chosen = [sample_clients(got.run.config, len(SIZES), t) for t in range(1, ROUNDS + 1)]
    theta, g = rounds_by_hand([[int(c) for c in each] for each in chosen])
    assert_tensors_close(got.run.shared, theta, 1e-12)
    for mine, wanted in zip(got.personal, g, strict=True):
        assert_tensors_close(mine, {f"g/{n}": v for n, v in wanted.items()}, 1e-12)


def test_the_server_by_hand() -> None:
    """θ = 1, θ_k = 3 and 2 of four clients, α = 1/2: h = −(2 + 1)/8, then θ = 2.5 + 3/4."""
    server = Server({"w": torch.tensor([1.0])}, {}, clients=4)
    updates = [Update(k, 1, {"w": torch.tensor([value])}) for k, value in ((0, 3.0), (2, 2.0))]
    FedDyn(0.5).server_update(server, updates, 1)
    assert server.memory["h/w"].tolist() == [-0.375]
    assert server.shared["w"].tolist() == [3.25]
    FedDyn(0.5).server_update(server, [Update(1, 1, {"w": torch.tensor([3.25])})], 2)  # nobody moves: h stays
    assert server.memory["h/w"].tolist() == [-0.375]
    assert server.shared["w"].tolist() == [4.0]


def test_batch_norm_statistics_are_the_mean() -> None:
    """A variance from which h/α were taken could be negative."""
    data = made_data((6, 8), dtype=np.float32)
    one, other = (
        train_whole(method, data, model=seeded(normed), rounds=1, momentum=0.0, lr=1e-6)
        for method in ("feddyn", "fedavg")
    )
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(one.run.shared[name], other.run.shared[name], atol=1e-5, rtol=0)
