"""A network with one hidden layer in plain NumPy: forward, gradient and mini-batch SGD written out.

hidden = tanh(W1 x + b1), logits = W2 hidden + b2; body = (W1, b1) named ``fc``, head = (W2, b2) named ``head``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from commonground import FederatedDataset
from commonground.engine.clients.batches import batch_schedule
from tests.helpers import made_data, seeded, weights_of

Weights = dict[str, Any]

BODY = ("fc.weight", "fc.bias")
HEAD = ("head.weight", "head.bias")
ALL = BODY + HEAD

SEED, LR, MOMENTUM, BATCH, EPOCHS = 7, 0.3, 0.5, 4, 2
SIZES = (5, 3, 8)  # batches of 4+1, 3, 4+4


def problem(sizes: Sequence[int] = SIZES) -> FederatedDataset:
    return made_data(sizes)


def network() -> nn.Sequential:
    layers = OrderedDict(fc=seeded(nn.Linear, 4, 5), act=nn.Tanh(), head=seeded(nn.Linear, 5, 3, seed=1))
    return nn.Sequential(layers)


def start() -> Weights:
    return weights_of(network())


SETTINGS: dict[str, Any] = {
    "seed": SEED, "lr": LR, "momentum": MOMENTUM, "batch_size": BATCH, "local_epochs": EPOCHS, "dtype": "float64",
    "rounds": 1,
}  # fmt: skip


def samples(data: FederatedDataset, client: int) -> tuple[Any, Any]:
    rows = data.train_indices(client)
    return data.x_train[rows], data.y_train[rows]


def loss(w: Weights, x: Any, y: Any) -> float:
    """Mean cross-entropy."""
    logits = np.tanh(x @ w["fc.weight"].T + w["fc.bias"]) @ w["head.weight"].T + w["head.bias"]
    return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]).mean())


def gradient(w: Weights, x: Any, y: Any) -> Weights:
    """Of the mean cross-entropy, for every tensor."""
    hidden = np.tanh(x @ w["fc.weight"].T + w["fc.bias"])
    logits = hidden @ w["head.weight"].T + w["head.bias"]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = (p @ w["head.weight"]) * (1 - hidden**2)
    return {
        "fc.weight": back.T @ x, "fc.bias": back.sum(0), "head.weight": p.T @ hidden, "head.bias": p.sum(0)
    }  # fmt: skip


def plan_batches(
    data: FederatedDataset, client: int, round: int, phase: int, batch: int = BATCH, share: float = 1.0, **length: int
) -> list[tuple[Any, Any]]:
    """The mini-batches of one call of ``fit``, as keyed by seed, round, client and phase."""
    x, y = samples(data, client)
    plan = batch_schedule(SEED, round, client, phase, size=len(y), batch_size=batch, share=share, **length)
    chosen = [order[:count] for order, count in zip(plan.order, plan.counts, strict=True)]
    return [(x[i], y[i]) for i in chosen]


def sgd(
    w: Weights, names: Sequence[str], batches: Sequence[tuple[Any, Any]], lr: float = LR, momentum: float = MOMENTUM
) -> Weights:
    """v ← momentum·v + gradient, w ← w − lr·v over the named tensors, from v = 0."""
    w = dict(w)
    velocity = {name: np.zeros_like(w[name]) for name in names}
    for x, y in batches:
        g = gradient(w, x, y)
        for name in names:
            velocity[name] = momentum * velocity[name] + g[name]
        for name in names:
            w[name] = w[name] - lr * velocity[name]
    return w


def part(w: Weights, names: Sequence[str]) -> Weights:
    return {name: w[name] for name in names}


def mean(sent: Sequence[Weights], weights: Sequence[float]) -> Weights:
    """Σ weight·tensor / Σ weight."""
    total = sum(weights)
    return {name: sum(k * w[name] for k, w in zip(weights, sent, strict=True)) / total for name in sent[0]}
