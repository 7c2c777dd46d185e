"""The verbs of the server, and what it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonground.aggregation import MEAN, Aggregate
from commonground.algorithms.client import Tensors
from commonground.keys import numpy_stream

__all__ = ["Server", "Update"]


@dataclass(frozen=True)
class Update:
    """What one client sent in a round: its number, its training-sample count and the tensors."""

    client: int
    samples: int
    tensors: Tensors


class Server:
    """The verbs of the server.

    Attributes:
        shared: the shared tensors, by name; the algorithm replaces entries.
        memory: what the server remembers and does not send, by name (kept in checkpoints).
        round: 1-based round.
        clients: number of clients in the federation.
        lr: this round's learning rate.
        weighting: ``uniform`` (as FedRep and FLUTE average) or ``samples`` (as FedAvg and FedPer do).
        buffers: names of shared tensors that are no parameters and have no gradient: BatchNorm's running statistics.
        has_aggregated, has_weighed: whether :attr:`aggregate` and :meth:`weights` were asked for.
    """

    def __init__(
        self,
        shared: Tensors,
        memory: Tensors | None = None,
        *,
        round: int = 1,
        clients: int = 1,
        lr: float = 1.0,
        weighting: str = "uniform",
        seed: int = 0,
        buffers: Sequence[str] = (),
        aggregate: Aggregate = MEAN,
    ) -> None:
        self.shared = shared
        self.memory = {} if memory is None else memory
        self.round = round
        self.clients = clients
        self.lr = lr
        self.weighting = weighting
        self.seed = seed
        self.buffers = frozenset(buffers)
        self.has_aggregated = self.has_weighed = False
        self._aggregate = aggregate

    @property
    def aggregate(self) -> Aggregate:
        """How updates are combined; the mean, or what stands in its place (``--aggregate``)."""
        self.has_aggregated = True
        return self._aggregate

    def draw(self, purpose: str) -> float:
        """As :meth:`Client.draw`."""
        return float(numpy_stream(self.seed, purpose, self.round).random())

    def mean(self, updates: Sequence[Update], around: Tensors | None = None) -> Tensors:
        """Mean of what was sent, by name: uniform over clients, or weighted by their training samples; or what the
        run has in place of the mean (``--aggregate``).

        Args:
            updates: of the round's clients.
            around: what was sent is a change of these tensors; by default of the shared ones.
        """
        tensors = [update.tensors for update in updates]
        return self.aggregate(tensors, self.weights(updates), self.shared if around is None else around)

    def weights(self, updates: Sequence[Update]) -> list[float]:
        """Each update's share in a mean; they sum to 1."""
        self.has_weighed = True
        weights = [float(u.samples) if self.weighting == "samples" else 1.0 for u in updates]
        total = sum(weights)
        return [weight / total for weight in weights]
