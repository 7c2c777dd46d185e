"""Pooled training: a yardstick that is not federated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from commonground.algorithms.base import Algorithm, Client, RunSettings, Tensors
from commonground.errors import ConfigError


@dataclass(frozen=True)
class Pooled(Algorithm):
    """Pooled: one model trained on the rows of all clients as if they were one. Nothing about it is federated.

    What clients could have if they were allowed to share their data: the yardstick beside Local Only, which shares
    nothing. In a round it takes as many mini-batch steps as the participants of a round of FedAvg take together, one
    after the other on the one model; a single client takes a share of these. Optimizer, rates and batch size are the
    run's. Every client's test rows judge the one model.

    Args:
        steps: mini-batch steps in a round, by default those of all participants together.
    """

    steps: Annotated[int, Field(ge=1)] | None = None

    name = "pooled"
    title = "Pooled (not federated)"
    source = "all clients' rows in one place"
    own_aggregate = "nothing is averaged"
    unused = (
        ("aggregate", own_aggregate),
        ("weighting", own_aggregate),
    )
    not_private = "all rows are in one place"
    shared = ("all",)
    pools = True

    def check(self, config: RunSettings) -> None:
        """Refuse statistics that clients keep."""
        if config.batch_norm == "local":
            raise ConfigError(
                f"{self.title} has one model, and --batch-norm local leaves each client statistics of its own"
            )

    def client_update(self, client: Client, round: int) -> Tensors:
        """Steps on everything."""
        client.fit("all", steps=self.steps)
        return client.send("all")
