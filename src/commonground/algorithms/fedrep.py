"""FedRep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from commonground.algorithms.base import Algorithm, Client, Tensors


@dataclass(frozen=True)
class FedRep(Algorithm):
    """FedRep: a shared body, personal heads (Collins et al. 2021, Algorithm 1).

    Each participant takes τ_h epochs on its head with the body fixed, then τ_φ epochs on the body with the head
    fixed; the server averages bodies. The authors' code averages by samples (``--weighting samples``) and adds weight
    decay 1e-4 and random crops and flips, which the paper does not mention.

    Args:
        head_epochs: τ_h, epochs on the head in a round; 10 in the paper.
        body_epochs: τ_φ, epochs on the body after that; by default the run's ``--local-epochs``.
    """

    head_epochs: Annotated[int, Field(ge=0)] = 10
    body_epochs: Annotated[int, Field(ge=0)] | None = None

    name = "fedrep"
    title = "FedRep"
    source = "Collins, Hassani, Mokhtari, Shakkottai 2021"
    shared = ("body",)
    personal = ("head",)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Algorithm 1, client side."""
        client.fit("head", epochs=self.head_epochs)
        client.fit("body", epochs=self.body_epochs)
        return client.send("body")
