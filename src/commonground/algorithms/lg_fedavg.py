"""LG-FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from commonground.algorithms.base import Algorithm, Client, Tensors


@dataclass(frozen=True)
class LGFedAvg(Algorithm):
    """LG-FedAvg: local representations, a shared upper part (Liang et al. 2020).

    The local part is the model's group ``lower``, the shared one ``upper``: for the CNNs the two convolutions and the
    linear layers, for the MLP all but the output layer and the output layer (Collins et al. 2021, App. A.2). As
    there, and unlike Liang et al., training starts from random weights, not from a FedAvg model.
    """

    name = "lg-fedavg"
    title = "LG-FedAvg"
    source = "Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency 2020"
    shared = ("upper",)
    personal = ("lower",)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Simultaneous steps on both parts; the upper part is sent."""
        client.fit("all")
        return client.send("upper")
