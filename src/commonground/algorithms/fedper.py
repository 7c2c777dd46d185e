"""FedPer."""

from __future__ import annotations

from dataclasses import dataclass

from commonground.algorithms.base import Algorithm, Client, Tensors


@dataclass(frozen=True)
class FedPer(Algorithm):
    """FedPer: a shared body, personal heads, both trained at once (Arivazhagan et al. 2019).

    The paper averages bodies by samples (``--weighting samples``) and lets more than the last layer be personal; here
    the head is the model's group ``head``.
    """

    name = "fedper"
    title = "FedPer"
    source = "Arivazhagan, Aggarwal, Singh, Choudhary 2019"
    shared = ("body",)
    personal = ("head",)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Simultaneous steps on body and head; the body is sent."""
        client.fit("all")
        return client.send("body")
