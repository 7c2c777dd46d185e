"""Methods of a user's own in every engine: clients of unequal size, and what each of them ends with."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import commonground as cg
from commonground.algorithms import Algorithm, Client, Tensors
from commonground.data import FederatedDataset
from commonground.engine import Run
from commonground.errors import ModelError

__all__ = ["ENGINES", "SIZES", "Own", "everything", "made", "net", "ran", "refused", "the_same"]

ENGINES = ("serial", "processes", "messages", "batched")
SIZES = (7, 31, 12, 19, 5, 23)


def made(sizes: tuple[int, ...] = SIZES) -> FederatedDataset:
    rng = np.random.default_rng(0)
    parts: list[Any] = []
    for size in sizes:
        x = rng.normal(size=(size + 6, 5)).astype(np.float32)
        y = rng.permutation(np.arange(size + 6) % 3)
        parts.append((x[:size], y[:size], x[size:], y[size:]))
    return FederatedDataset.from_arrays(parts)


def net(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(6)] if norm else []
    return nn.Sequential(nn.Linear(5, 6), *middle, nn.ReLU(), nn.Linear(6, 3))


def ran(method: Algorithm, engine: str, **more: Any) -> Run:
    more = {"rounds": 2, "lr": 0.1, "batch_size": 4, "dtype": "float64", **more}
    return cg.train(method, more.pop("data", made()), model=more.pop("model", net()), engine=engine, **more)


def everything(run: Run) -> dict[str, Tensor]:
    own = {f"{client}/{name}": value for client in range(len(run.clients)) for name, value in
           run.trained.own(client).items()}  # fmt: skip
    loss = torch.tensor([row["train_loss"] for row in run.history], dtype=torch.float64)
    return {**run.shared, **own, "loss": loss}


def the_same(method: Algorithm, **more: Any) -> dict[str, Tensor]:
    """What all engines give alike."""
    first, *others = (everything(ran(method, engine, **more)) for engine in ENGINES)
    for found in others:
        assert set(found) == set(first)
        for name, value in first.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)
    return first


def refused(method: Algorithm, says: str, engines: tuple[str, ...] = ENGINES, **more: Any) -> None:
    for engine in engines:
        with pytest.raises(ModelError, match=says):
            ran(method, engine, **more)


class Own(Algorithm):
    """Averaging, of which the tests change a part."""

    title = "own"
    source = "a test"
    shared: ClassVar[tuple[str, ...]] = ("all",)

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        return client.send("all")
