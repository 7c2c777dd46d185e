"""FedDyn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from commonground.algorithms.base import Algorithm, Client, Server, Tensors, Update, prefixed, unprefixed


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """FedDyn: one model, with a penalty at each client that moves its optimum to the federation's (Acar et al. 2021).

    With g_k = 0 and h = 0 at the start, in a round of their Algorithm 1

    - a participant trains the received θ on f_k(θ_k) − ⟨g_k, θ_k⟩ + α/2 ‖θ_k − θ‖² (eq. 1) and sets
      g_k ← g_k − α (θ_k − θ), the gradient of f_k at θ_k if it has found the optimum;
    - the server sets h ← h − α/m Σ (θ_k − θ) over the participants, with m the number of all clients, and
      θ ← mean(θ_k) − h/α.

    g_k stays with its client; what travels is what travels in FedAvg. The optimum is only approached by local epochs of
    SGD, so it takes several of them and rounds to work. Many clients that take part seldom let h/α grow: try a larger
    α, or fewer rounds.

    The authors' code (alpemreacar/FedDyn) divides α by the client's share of the samples, which makes no difference
    where clients are of one size; it clips gradients to norm 10, and its curves test the mean of all clients' last
    models, not θ. Here α is everyone's, as in the paper, nothing is clipped, and θ is tested. ``--weighting samples``
    weighs the mean(θ_k) alone: where θ stands still, the clients' gradients still add up to 0 unweighted. BatchNorm
    statistics are averaged and corrected by nothing.

    Args:
        alpha: α, the strength of the regulariser; 0.01 in the authors' example for CIFAR-10. The paper chooses among
            0.1, 0.01 and 0.001.
    """

    alpha: Annotated[float, Field(gt=0)] = 0.1

    name = "feddyn"
    title = "FedDyn"
    source = "Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama 2021"
    own_aggregate = "its server keeps the sum of all clients' changes"
    not_private = ""
    shared = ("all",)
    pseudo_gradient = False

    def client_state(self, initial: Tensors) -> Tensors:
        """g_k = 0 (of buffers as well, where it corrects nothing)."""
        return prefixed("g", {name: torch.zeros_like(value) for name, value in initial.items()})

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs with the dynamic regulariser, and the new g_k."""
        slope = unprefixed("g", client.state)

        def proximal(own: Tensors, received: Tensors) -> Tensor:
            squares = [(own[name] - start).square().sum() for name, start in received.items()]
            return 0.5 * self.alpha * torch.stack(squares).sum()

        client.fit("all", penalty=proximal, correction={name: -value for name, value in slope.items()})
        trained = client.get("all")
        moved = {name: slope[name] - self.alpha * (trained[name] - client.received[name]) for name in slope}
        client.keep(prefixed("g", moved))
        return client.send(trained)

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """The new h and θ."""
        for name, mean in server.mean(updates).items():
            theta = server.shared[name]
            if name not in server.buffers:
                moved = torch.stack([u.tensors[name] - theta for u in updates]).sum(0)
                h = server.memory.get(f"h/{name}", torch.zeros_like(theta)) - self.alpha / server.clients * moved
                server.memory[f"h/{name}"] = h
                mean = mean - h / self.alpha
            server.shared[name] = mean
