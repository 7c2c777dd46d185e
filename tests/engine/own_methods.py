"""What the tests of methods of one's own begin from: a method that averages, data, a network, and a run's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import commonground as cg
from commonground.algorithms import Algorithm, Client, Tensors
from commonground.data import FederatedDataset

__all__ = ["ENGINES", "Own", "made", "net", "weights"]

ENGINES = ("serial", "batched", "messages")


def made(clients: int = 4, classes: int = 3, features: int = 5) -> FederatedDataset:
    rng = np.random.default_rng(0)
    parts: list[Any] = []
    for _ in range(clients):
        x = rng.normal(size=(24, features)).astype(np.float32)
        y = rng.permutation(np.arange(24) % classes)
        parts.append((x[:16], y[:16], x[16:], y[16:]))
    return FederatedDataset.from_arrays(parts)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def weights(method: Algorithm, engine: str, data: FederatedDataset | None = None, **more: Any) -> str:
    torch.manual_seed(0)
    found = cg.train(method, data or made(), model=net(), rounds=more.pop("rounds", 3), engine=engine, **more)
    return str(found.summary["weights_sha256"])


class Own(Algorithm):
    """Averaging, of which the tests change a part."""

    title = "own"
    source = "a test"
    shared = ("all",)

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        return client.send("all")
