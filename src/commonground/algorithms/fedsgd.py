"""FedSGD."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from commonground.algorithms.base import Algorithm, Client, Server, Tensors, Update


@dataclass(frozen=True)
class FedSGD(Algorithm):
    """FedSGD: each participant sends one full-batch gradient, the server takes the step (McMahan et al. 2017).

    The paper weights gradients by the clients' numbers of samples (``--weighting samples``). Running statistics of
    BatchNorm layers, which have no gradient, are sent as the clients' pass over their data leaves them, and averaged.
    """

    name = "fedsgd"
    title = "FedSGD"
    source = "McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017"
    shared = ("all",)
    not_private = ""
    unused = (
        ("local_epochs", "a client computes one gradient in a round"),
        ("local_steps", "a client computes one gradient in a round"),
        ("batch_size", "the gradient is over all rows of a client"),
        ("momentum", "clients take no steps, and the server's is lr times the mean gradient"),
        ("weight_decay", "clients take no steps, and the server's is lr times the mean gradient"),
    )
    needs_sgd = "clients send a gradient, and the server takes the step (--server-optimizer adam is its own)"

    def client_update(self, client: Client, round: int) -> Tensors:
        """The gradient of the client's mean loss over all its training data, and the statistics of that pass."""
        gradient = client.gradient("all")
        return client.send({**client.get("all"), **gradient})

    def change_of(self, received: Tensors, sent: Tensors, buffers: Collection[str]) -> Tensors:
        """A gradient is no change of the weights: it is one of nothing."""
        return {name: received[name] if name in buffers else torch.zeros_like(sent[name]) for name in sent}

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """w ← w − lr · mean gradient; statistics ← their mean."""
        # As in change_of: a gradient is no change of the weights.
        statistics = {name: server.shared[name] for name in server.buffers if name in server.shared}
        for name, sent in server.mean(updates, around=statistics).items():
            step = name not in server.buffers
            server.shared[name] = server.shared[name] - server.lr * sent if step else sent
