"""Who takes part in a round."""

from __future__ import annotations

import hashlib

import numpy as np

from commonground.config import RunConfig
from commonground.keys import numpy_stream

__all__ = ["most_rounds", "sample_clients"]


def sample_clients(config: RunConfig, clients: int, round: int, secret: bytes | None = None) -> list[int]:
    """The participants of a round: ``participation`` · clients of them, without replacement, in ascending order.

    Args:
        config: of the run.
        clients: how many there are.
        round: 1-based round.
        secret: what they follow from in place of the seed, where nobody may know who takes part.
    """
    wanted = config.participants(clients)
    if wanted == clients:
        return list(range(clients))
    if secret is None:
        stream = numpy_stream(config.seed, "participants", round)
    else:
        digest = hashlib.sha256(secret + f"participants\x1f{round}".encode()).digest()
        stream = np.random.default_rng(int.from_bytes(digest, "big"))
    chosen = stream.choice(clients, wanted, replace=False, shuffle=False)
    return sorted(int(c) for c in chosen)


def most_rounds(config: RunConfig, clients: int, rounds: int) -> int:
    """The largest number of the first ``rounds`` rounds in which one client takes part."""
    if config.participants(clients) == clients:
        return rounds
    counts = np.zeros(clients, np.int64)
    for round in range(1, rounds + 1):
        counts[sample_clients(config, clients, round)] += 1
    return int(counts.max())
