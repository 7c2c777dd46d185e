"""L2GD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from commonground.algorithms.base import Algorithm, Client, Server, Tensors, Update, prefixed, unprefixed


@dataclass(frozen=True)
class L2GD(Algorithm):
    """L2GD: personal models x_i that now and then step towards their mean (Hanzely and Richtárik 2020, Algorithm 1).

    It minimises Σ f_i(x_i)/n + λ/(2n) Σ ‖x_i − x̄‖². A coin, the same for everybody, decides what a round is:

    - with probability 1 − p a local round, in which nothing travels back: the paper takes one gradient step of size
      α/(n(1 − p)); here it is local epochs of SGD at the run's ``--lr`` (Collins et al. 2021, App. A.2);
    - with probability p a round of averaging: participants send x_i and get back
      x_i ← (1 − αλ/(np)) x_i + αλ/(np) x̄, where n is the number of all clients and x̄ the mean of the participants.

    Collins et al. take p = 0.9, and their code has all clients take part in every round, which costs as much as a
    tenth of them in the other methods: ``--set p=0.9 --participation 1``. With few clients sampled *and* p = 0.9 a
    model is hardly ever trained (on CIFAR-10 it is at chance after 20 rounds), so the default here is p = 0.1. The
    personal models start at the same point; the global model is the last x̄, which clients are pulled to and no server
    optimizer moves.

    Args:
        p: probability of averaging; 0.9 in Collins et al. 2021, App. A.2.
        alpha: α, which here scales the averaging alone.
        strength: λ, the pull of personal models to their mean.
        authors_code: average with the factor αλ/(n(1 − p)), as their code does; it also takes the local learning rate
            α/(n(1 − p)), which ``--lr`` has to be set to.
    """

    p: Annotated[float, Field(gt=0, lt=1)] = 0.1
    alpha: Annotated[float, Field(ge=0)] = 0.25
    strength: Annotated[float, Field(ge=0)] = 1.0
    authors_code: bool = False

    name = "l2gd"
    title = "L2GD"
    source = "Hanzely, Richtárik 2020"
    shared = ("all",)
    may_stay_silent = True
    clients_remember = True
    pseudo_gradient = False
    not_private = "its clients get their own models back from the server, which would be cut and noised"

    def client_state(self, initial: Tensors) -> Tensors:
        """x_i, the same for all at first."""
        return prefixed("own", initial)

    def is_silent(self, server: Server, rounds: int) -> bool:
        """If the coin says so, which is the same one for everybody."""
        return server.draw("coin") >= self.p

    def client_update(self, client: Client, round: int) -> Tensors:
        """Send x_i if the coin says so, else train it."""
        own = unprefixed("own", client.state)
        client.set(own)
        if client.draw("coin") < self.p:
            for batch in client.batches(steps=1):
                client.gradient("all", batch)  # for the round's training loss alone
            return client.send(own)
        client.fit("all")
        client.keep(prefixed("own", client.get("all")))
        return client.send({})

    def spared(self, server: Server, heard: int) -> tuple[frozenset[str], Tensors]:
        """The mean, which clients do not look at: the step towards it is made for them (:meth:`replies`)."""
        return frozenset(server.shared) if heard else frozenset(), {}

    def replies(self, server: Server, updates: Sequence[Update]) -> dict[int, Tensors]:
        """The step towards the mean, which is the server's shared model by now."""
        share = self.alpha * self.strength / (server.clients * ((1 - self.p) if self.authors_code else self.p))
        return {
            u.client: prefixed(
                "own", {name: (1 - share) * x + share * server.shared[name] for name, x in u.tensors.items()}
            )
            for u in updates
        }

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        """x_i."""
        return unprefixed("own", own)
