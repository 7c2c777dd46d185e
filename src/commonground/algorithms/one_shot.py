"""One-shot averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonground.algorithms.base import Client, Server, Tensors, Update, prefixed, unprefixed
from commonground.algorithms.local_sgd import LocalSGD


@dataclass(frozen=True)
class OneShot(LocalSGD):
    """One-shot averaging: every client trains alone, and the models are averaged once, at the end (Bao et al. 2024,
    Theorem 4, there with gradient descent).

    Local SGD with I = T. The work is cut into rounds of ``steps`` for progress, tests and checkpoints, but nothing
    travels up before the last: until then the global model is the initial one, and a client's own model is its own.
    With ``--participation`` below 1 a client trains in the rounds it is sampled for, and those of the last round are
    averaged.

    Args:
        steps: local steps in a round; by default the run's ``--local-steps``, else 8.
        total_steps, halvings: as for Local SGD; momentum, if any, starts afresh in each round.
    """

    name = "one-shot"
    title = "One-shot averaging"
    source = "Bao, Crawshaw, Liu 2024"
    not_private = ""
    may_stay_silent = True
    clients_remember = True  # what they are sent changes in the last round alone

    def needs_rounds(self) -> str:
        """The average comes with the last one."""
        return "its models are averaged once, after its last round"

    def rounds_sent(self, rounds: int, planned: int) -> int:
        """The last one alone."""
        return int(rounds == planned)

    def is_silent(self, server: Server, rounds: int) -> bool:
        """In all rounds but the last."""
        return server.round != rounds

    def client_state(self, initial: Tensors) -> Tensors:
        """The client's own model beside its place in its data."""
        return super().client_state(initial) | prefixed("own", initial)

    def client_update(self, client: Client, round: int) -> Tensors:
        """The round's steps on the client's own model; after the last round it is sent."""
        client.set(unprefixed("own", client.state))
        self.walk(client, round)
        own = client.get("all")
        client.keep(prefixed("own", own))
        return client.send(own if round == client.rounds else {})

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """The mean of the models, once they are there."""
        if updates and updates[0].tensors:
            super().server_update(server, updates, round)

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        """The client's own model."""
        return unprefixed("own", own)
