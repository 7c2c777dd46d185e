"""Local Only."""

from __future__ import annotations

from dataclasses import dataclass

from commonground.algorithms.base import Algorithm, Client, Tensors


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """Local Only: every client trains its own model on its own data; nothing travels.

    The yardstick every federated method has to beat (Collins et al. 2021, Table 1). A client trains in the rounds it
    is sampled, so that it computes as much as under the other methods.
    """

    name = "local"
    title = "Local Only"
    source = "Collins, Hassani, Mokhtari, Shakkottai 2021"
    own_aggregate = "nothing is averaged"
    unused = (("aggregate", own_aggregate), ("weighting", own_aggregate), ("server_optimizer", own_aggregate))
    personal = ("all",)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs; an empty message."""
        client.fit("all")
        return client.send({})
