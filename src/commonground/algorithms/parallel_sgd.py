"""Parallel SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonground.algorithms.local_sgd import LocalSGD


@dataclass(frozen=True)
class ParallelSGD(LocalSGD):
    """Parallel SGD: one step with the mean of the clients' mini-batch gradients (Bao et al. 2024, §8).

    Local SGD with I = 1: the mean of models that took one step each from the same point is one step with their mean
    gradient, so N clients with batches of B are SGD with batches of N · B. (BatchNorm, where there is any, normalises
    each client's batch by itself; the paper's authors run it as one client with batches of N · B.)

    Args:
        steps: I, which is 1.
        total_steps, halvings: as for Local SGD.
    """

    steps: Literal[1] = 1

    name = "parallel-sgd"
    title = "Parallel SGD"
    unused = (
        ("local_epochs", "a client takes one step in a round"),
        ("local_steps", "a client takes one step in a round"),
        ("momentum", "a client takes one step in a round, and momentum is fresh in each"),
    )
    source = "Bao, Crawshaw, Liu 2024"
