"""A part of a run's work, for rehearsing it: fewer rows of each client, and how much work a round is."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commonground.data import FederatedDataset
from commonground.data.arrays import offsets_of
from commonground.engine.backends.pooled import pooled_steps
from commonground.engine.setup import Setup

__all__ = ["shortened", "work_of"]


def shortened(setup: Setup, batches: int) -> Setup:
    """The same run with at most so many mini-batches of each client; arrays and model are shared.

    Args:
        setup: of the run.
        batches: of each client, in an epoch or, where steps are counted, in a round.
    """
    config = setup.config
    if config.local_steps is not None:
        config = config.model_copy(update={"local_steps": min(config.local_steps, batches)})
    return setup.on(_first_rows(setup.data, batches * config.batch_size), config, same_rows=True)


def _first_rows(data: FederatedDataset, rows: int) -> FederatedDataset:
    sizes = data.train_sizes
    place = np.arange(len(data.train_index)) - np.repeat(data.train_offsets[:-1], sizes)
    offsets = offsets_of(np.minimum(sizes, rows))
    return replace(data, train_index=data.train_index[place < rows], train_offsets=offsets)


def work_of(setup: Setup, clients: Sequence[int], workers: int) -> float:
    """Mini-batches that one worker computes in a round of these clients, in each epoch, until the last one is done.

    Args:
        setup: of the run.
        clients: who takes part.
        workers: processes that they are shared out to, the largest clients first.
    """
    config = setup.config
    if setup.algorithm.pools:
        return float(pooled_steps(setup))
    if config.local_steps is not None:
        return float(math.ceil(len(clients) / workers) * config.local_steps)
    sizes = np.ceil(setup.data.train_sizes[np.asarray(clients, dtype=np.int64)] / config.batch_size)
    if workers == 1:
        return float(sizes.sum())
    ends = [0.0] * workers
    for size in sorted(sizes.tolist(), reverse=True):
        heapq.heappush(ends, heapq.heappop(ends) + size)
    return max(ends)
