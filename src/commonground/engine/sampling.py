"""Who takes part in a round."""

from __future__ import annotations

import numpy as np

from commonground.config import RunConfig
from commonground.keys import numpy_stream

__all__ = ["most_rounds", "sample_clients"]


def sample_clients(config: RunConfig, clients: int, round: int) -> list[int]:
    """The participants of a round: ``participation`` · clients of them, without replacement, in ascending order."""
    wanted = config.participants(clients)
    if wanted == clients:
        return list(range(clients))
    chosen = numpy_stream(config.seed, "participants", round).choice(clients, wanted, replace=False, shuffle=False)
    return sorted(int(c) for c in chosen)


def most_rounds(config: RunConfig, clients: int, rounds: int) -> int:
    """The largest number of the first ``rounds`` rounds in which one client takes part."""
    if config.participants(clients) == clients:
        return rounds
    counts = np.zeros(clients, np.int64)
    for round in range(1, rounds + 1):
        counts[sample_clients(config, clients, round)] += 1
    return int(counts.max())
