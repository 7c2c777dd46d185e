"""A client whose model is one number ``w`` and whose loss is a straight line, for rounds worked out in the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from commonground.algorithms import Client, Tensors


class OneNumber:
    """The verbs that move numbers, on one.

    Args:
        slope: of the loss, everywhere.
        batches: mini-batches of one pass.
        received: from the server.
        state: what the client kept.
        lr: learning rate.
    """

    def __init__(self, slope: float, batches: int, received: float, state: Tensors, lr: float = 0.1) -> None:
        self.slope, self.count, self.lr = slope, batches, lr
        self.received = {"w": torch.tensor(received)}
        self.live, self.state = dict(self.received), dict(state)
        self.momentum, self.weight_decay = 0.5, 0.0

    def batches(self, epochs: Tensor | int = 1, **_: Any) -> Iterator[object]:
        yield from range(self.count * int(epochs))

    def gradient(self, group: Any, batch: object = None, **_: Any) -> Tensors:
        return {"w": torch.tensor(self.slope)}

    def step(self, direction: Tensors) -> None:
        self.live = {"w": self.live["w"] - self.lr * direction["w"]}

    def fit(self, group: str) -> None:
        """Leaves the number alone, so that what came before can be seen."""

    def get(self, group: str) -> Tensors:
        return dict(self.live)

    def set(self, tensors: Tensors) -> None:
        self.live |= tensors

    def keep(self, state: Tensors) -> None:
        self.state |= state

    def send(self, tensors: Tensors) -> Tensors:
        return tensors

    @property
    def client(self) -> Client:
        """As an algorithm takes it."""
        return cast(Client, self)
