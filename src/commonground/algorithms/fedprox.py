"""FedProx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from commonground.algorithms.base import Algorithm, Client, Tensors


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedProx: FedAvg whose local training is held near the model it started from (Li et al. 2020, Algorithm 2).

    Each participant trains on h(w; w_t) = f_i(w) + μ/2 ‖w − w_t‖², where w_t is what it received. Local epochs of
    SGD are its inexact solution.

    Args:
        mu: μ, the weight of the proximal term; 0 is FedAvg. Collins et al. 2021 (App. A.2) take 0.1 for CIFAR, 0.25 for
            FEMNIST and Sent140.
    """

    mu: Annotated[float, Field(ge=0)] = 0.1

    name = "fedprox"
    title = "FedProx"
    source = "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020"
    shared = ("all",)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs with the proximal term."""

        def proximal(own: Tensors, received: Tensors) -> Tensor:
            squares = [(own[name] - start).square().sum() for name, start in received.items()]
            return 0.5 * self.mu * torch.stack(squares).sum()

        client.fit("all", penalty=proximal)
        return client.send("all")
