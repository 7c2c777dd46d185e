"""Local SGD."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from commonground.algorithms.base import Algorithm, Client, RunSettings, Tensors
from commonground.errors import ConfigError

MOST_STEPS = 10_000_000  # in a round: each has a learning rate of its own, and the round is scheduled at once
POSITION = "order/steps"  # how far a client has come in its order of batches


@dataclass(frozen=True)
class LocalSGD(Algorithm):
    """Local SGD with interval I: every I steps of every client, all models become their mean (Bao et al. 2024, §8).

    A round is one interval. What sets it apart from FedAvg counted in steps: a client goes on in its data where its
    last round ended, epoch after epoch, instead of beginning a new epoch in each round, and the learning rate follows
    the global step t, not the round: it is halved at 1/2 and 3/4 of all T steps, in the middle of a round where a
    milestone falls there. I = 1 is Parallel SGD, I = T one-shot averaging.

    T is rounds · I. Where I does not divide the steps that are wanted, name them: with ``total_steps`` the last round
    takes the steps that are left, and ``--rounds`` must be T/I rounded up.

    Args:
        steps: I, local steps between two averages; by default the run's ``--local-steps``, else 8. (Epochs are not
            counted here: ``--local-epochs`` is refused.)
        total_steps: T; 0 for rounds · I.
        halvings: shares of T after which the learning rate is halved (on top of ``--lr-schedule``).

    Without ``--momentum`` there is none, as in the paper; with it, it is fresh in each round.
    """

    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = None
    total_steps: Annotated[int, Field(ge=0)] = 0
    halvings: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.5, 0.75)

    default_momentum = 0.0
    name = "local-sgd"
    title = "Local SGD"
    source = "Stich 2019; Bao, Crawshaw, Liu 2024"
    shared = ("all",)
    unused: ClassVar[tuple[tuple[str, str], ...]] = (("local_epochs", "it counts steps (--local-steps), not epochs"),)
    needs_sgd = "its learning rate and data order continue from round to round, and what Adam remembers would not"

    def check(self, config: RunSettings) -> None:
        """Refuse rounds that do not make the steps wanted, and two opinions on I."""
        if self.steps != type(self).steps and config.local_steps not in (None, self.steps):
            raise ConfigError(f"steps={self.steps} and --local-steps {config.local_steps} are both I; give one of them")
        interval = self._interval(config.local_steps)
        if interval > MOST_STEPS:
            raise ConfigError(f"--local-steps {interval} are more than {self.title} takes in a round, {MOST_STEPS:,}")
        rounds = math.ceil(self.total_steps / interval) or config.rounds
        if rounds != config.rounds:
            raise ConfigError(
                f"{config.rounds} rounds of {interval} steps do not make {self.total_steps} steps; --rounds {rounds} "
                "does (the last round takes the steps that are left)"
            )

    def _interval(self, local_steps: int | None) -> int:
        return self.steps or local_steps or 8

    def done_before(self, round: int, config: RunSettings) -> float:
        """Of all steps, of which the last round may take fewer."""
        interval = self._interval(config.local_steps)
        return (round - 1) * interval / (self.total_steps or config.rounds * interval)

    def lr_factor(self, done: float) -> float:
        """Halved at each milestone."""
        return float(0.5 ** sum(done >= share for share in self.halvings))

    def last_lr_factor(self, rounds: int) -> float:
        """As in the last step, be it in the middle of a round."""
        return self.lr_factor(1.0)

    def needs_rounds(self) -> str:
        """The halvings stand at shares of T."""
        shares = " and ".join(f"{share:g}" for share in self.halvings)
        return f"its learning rate is halved at {shares} of all its steps (halvings)" if shares else ""

    def client_state(self, initial: Tensors) -> Tensors:
        """How many steps the client has taken."""
        return {POSITION: torch.zeros((), dtype=torch.int64, device="cpu")}

    def client_update(self, client: Client, round: int) -> Tensors:
        """I steps on the whole model, which is sent."""
        self.walk(client, round)
        return client.send("all")

    def walk(self, client: Client, round: int) -> None:
        """The round's steps, which go on where the client's last ones ended."""
        interval = self._interval(client.local_steps)
        total, before = self.total_steps or client.rounds * interval, (round - 1) * interval
        steps = min(interval, total - before)
        rates = [client.lr_after((before + step) / total) for step in range(steps)]
        position = client.state[POSITION]
        client.fit("all", steps=steps, start=position, lr=rates)
        client.keep({POSITION: position + steps})
