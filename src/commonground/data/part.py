"""A data set with the samples of some of its clients alone, as it is on their own machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from commonground.data.arrays import Array, offsets_of
from commonground.data.federated import FederatedDataset

__all__ = ["part_of"]


def part_of(data: FederatedDataset, clients: Sequence[int]) -> FederatedDataset:
    """A data set of these clients, in this order; their samples are copied, no other client's are in it.

    Args:
        data: of all clients.
        clients: their numbers; in the part they are numbered from 0.
    """
    train, held = ([indices(c) for c in clients] for indices in (data.train_indices, data.validation_indices))
    own = FederatedDataset.from_arrays(
        [_samples(data, c) for c in clients],
        name=data.name,
        classes=data.classes,
        class_names=data.class_names,
        preprocess=data.preprocess,
        client_names=tuple(data.client_name(c) for c in clients),
        task=data.task,
        noise=None if data.noise is None else data.noise.of(list(clients)),
    )
    if not sum(map(len, held)):
        return own
    sizes = [len(rows) for pair in zip(train, held, strict=True) for rows in pair]  # a client's rows: trained on, held
    ends = np.cumsum(sizes)
    spans = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return replace(
        own,
        train_index=np.concatenate(spans[0::2]),
        train_offsets=offsets_of(sizes[0::2]),
        validation_index=np.concatenate(spans[1::2]),
        validation_offsets=offsets_of(sizes[1::2]),
    )


def _samples(data: FederatedDataset, client: int) -> tuple[Array, Array, Array, Array]:
    rows = np.concatenate([data.train_indices(client), data.validation_indices(client)])
    test = data.test_indices(client)
    return data.x_train[rows], data.y_train[rows], data.x_test[test], data.y_test[test]
