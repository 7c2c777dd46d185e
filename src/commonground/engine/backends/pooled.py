"""Training on all clients' rows as one set, for methods that are yardsticks and not federated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from commonground.algorithms import Tensors, Update
from commonground.data import FederatedDataset
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.serial import SerialEngine, run_client
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.setup import Setup

__all__ = ["PooledEngine", "pooled_data", "pooled_steps"]


def pooled_data(data: FederatedDataset) -> FederatedDataset:
    """The same rows as those of one client: all that are trained on, client after client. No array is copied."""
    return replace(
        data,
        train_offsets=np.array([0, len(data.train_index)]),
        test_offsets=np.array([0, len(data.test_index)]),
        client_names=("all clients' rows",),
        validation_index=None,
        validation_offsets=None,
        noise=None,  # the rows are read from the clients' own data, which has it
    )


def pooled_steps(setup: Setup) -> int:
    """Mini-batch steps in a round: as many as the participants of one of FedAvg take together, if they are clients of
    mean size; or those of ``steps``.
    """
    config, given = setup.config, getattr(setup.algorithm, "steps", None)
    if given is not None:
        return int(given)
    participants = config.participants(setup.data.clients)
    if config.local_steps is not None:
        return participants * config.local_steps
    batches = sum(math.ceil(int(size) / config.batch_size) for size in setup.data.train_sizes)
    return round(participants * config.local_epochs * batches / setup.data.clients)


class PooledEngine(SerialEngine):
    """One training on everything in each round, and tests on every client's own rows.

    Args:
        setup: of a method that pools; its data are those of the clients.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        config = setup.config.model_copy(update={"local_steps": pooled_steps(setup)})
        # Rows go by their position, with their own client's noise.
        self._pooled = SequentialClient(setup.on(pooled_data(setup.data), config, same_rows=True))

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """One result for all, in the first client's name."""
        self.check_stop()
        done = run_client(self._pooled, round, 0, shared, {})
        samples = int(self.setup.data.train_sizes[clients[0]])  # of a mean of one, which does not depend on it
        return [ClientResult(Update(clients[0], samples, done.update.tensors), done.loss, {})]
