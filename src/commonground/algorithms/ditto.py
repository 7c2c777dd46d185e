"""Ditto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from commonground.algorithms.base import Algorithm, Client, RunSettings, Tensors, prefixed, unprefixed
from commonground.errors import ConfigError


@dataclass(frozen=True)
class Ditto(Algorithm):
    """Ditto: FedAvg, and a personal model v_i of each client that is held near the global one (Li et al. 2021).

    A participant trains the received w_t as in FedAvg and sends it; then it takes steps
    v_i ← v_i − η (∇f_i(v_i) + λ (v_i − w_t)) on its own model, which never leaves it: steps along the gradient of its
    objective f_i(v_i) + λ/2 ‖v_i − w_t‖². All personal models start at the initial global one. BatchNorm statistics
    belong to each of the two models.

    FedRep's authors take the step of the λ term outside of the momentum; here it is part of the gradient, as in the
    paper. Without momentum the two are the same.

    Args:
        strength: λ, the pull to the global model (Collins et al. 2021, App. A.2: 0.75, but 1 for CIFAR-100).
        personal_epochs: epochs on the personal model; by default the run's ``--local-epochs``.
    """

    strength: Annotated[float, Field(ge=0)] = 0.75
    personal_epochs: Annotated[int, Field(ge=0)] | None = None

    name = "ditto"
    title = "Ditto"
    source = "Li, Hu, Beirami, Smith 2021"
    shared = ("all",)

    def check(self, config: RunSettings) -> None:
        """Refuse one set of BatchNorm statistics for two models."""
        if config.batch_norm == "local":
            raise ConfigError(
                f"{self.title} trains two models at each client, and --batch-norm local keeps one set of statistics; "
                "use --batch-norm averaged, which leaves each personal model its own"
            )

    def client_state(self, initial: Tensors) -> Tensors:
        """v_i = w_0."""
        return prefixed("own", initial)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Global model first, then the personal one; both from this round's w_t."""
        client.fit("all")
        sent = client.send("all")

        def distance(own: Tensors, received: Tensors) -> Tensor:
            squares = [(own[name] - anchor).square().sum() for name, anchor in received.items()]
            return 0.5 * self.strength * torch.stack(squares).sum()

        client.set(unprefixed("own", client.state))
        client.fit("all", epochs=self.personal_epochs, penalty=distance)
        client.keep(prefixed("own", client.get("all")))
        return sent

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        """v_i."""
        return unprefixed("own", own)
