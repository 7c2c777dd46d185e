"""FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from commonground.algorithms.base import Algorithm, Client, Tensors


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """FedAvg: one shared model, local SGD, averaging (McMahan et al. 2017, Algorithm 1).

    The paper weights the clients' models by their numbers of samples (``--weighting samples``); the default here is the
    plain mean, as in FedRep's Algorithm 1.

    With ``--finetune-epochs 10`` it becomes FedAvg+FT: after the last round every client trains the head of the final
    global model on its own data (Collins et al. 2021, §5.2).
    """

    name = "fedavg"
    title = "FedAvg"
    source = "McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017"
    shared = ("all",)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs on the whole model, which is sent."""
        client.fit("all")
        return client.send("all")
