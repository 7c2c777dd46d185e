"""The same clients with fewer samples each."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from commonground.data.arrays import offsets_of
from commonground.data.federated import FederatedDataset
from commonground.data.validation import relearnt
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream

__all__ = ["limit_samples", "with_enough"]


def limit_samples(
    data: FederatedDataset,
    split: Literal["train", "test"],
    samples: int,
    seed: int,
    *,
    per_class: bool = False,
    by_class: bool = True,
) -> FederatedDataset:
    """The same clients with ``samples`` training or test samples each, spread evenly over the client's classes.

    A table's encoders and scales are learnt anew, from the training rows that stay.

    Args:
        data: the clients.
        split: which samples to limit; the others stay.
        samples: how many to keep, per client or per class.
        seed: keys the choice; a larger number of samples contains a smaller one.
        per_class: whether ``samples`` counts those of each of a client's classes.
        by_class: false keeps samples whatever their class, so that which ones are kept tells nothing of any.

    Raises:
        ConfigError: fewer than one sample is asked for.
        DataError: a client has fewer samples (of a class) than asked for.
    """
    if samples < 1:
        raise ConfigError(f"at least 1 sample per client must be kept, not {samples}")
    indices, labels_of = data.train_indices if split == "train" else data.test_indices, data.strata(split)
    kind = "training" if split == "train" else "test"
    chosen = []
    for client in range(data.clients):
        index = indices(client)
        if not per_class and samples > len(index):
            raise DataError(
                f"{samples} {kind} samples per client were asked for, but client {data.shown_name(client)} has "
                f"{len(index)}"
            )
        index = numpy_stream(seed, "shots", split, client).permutation(index)
        labels = labels_of[index] if by_class else np.zeros_like(index)
        rank = np.empty(len(index), dtype=np.int64)  # how many samples of the same class come before
        for label in np.unique(labels):
            own = np.flatnonzero(labels == label)
            if per_class and len(own) < samples:
                raise DataError(
                    f"{samples} {kind} samples per class were asked for, but client {data.shown_name(client)} has "
                    f"{len(own)} of class '{data.class_names[label]}'"
                )
            rank[own] = np.arange(len(own))
        kept = index[rank < samples] if per_class else index[np.argsort(rank, kind="stable")[:samples]]
        chosen.append(np.sort(kept))
    joined = np.concatenate(chosen)
    offsets = offsets_of(map(len, chosen))
    if split == "train":
        return relearnt(replace(data, train_index=joined, train_offsets=offsets))
    return replace(data, test_index=joined, test_offsets=offsets)


def with_enough(data: FederatedDataset, samples: int, *, per_class: bool = False) -> tuple[FederatedDataset, list[str]]:
    """The clients with at least so many training samples (of each of their classes), and the names of the others.

    If no client has enough, all of them are given back, for :func:`limit_samples` to say so.
    """
    strata, kept = data.strata("train"), []
    for client in range(data.clients):
        index = data.train_indices(client)
        fewest = np.unique(strata[index], return_counts=True)[1].min() if per_class else len(index)
        if fewest >= samples:
            kept.append(client)
    if len(kept) in (0, data.clients):
        return data, []
    train, test = ([rows(client) for client in kept] for rows in (data.train_indices, data.test_indices))
    names = tuple(data.client_name(client) for client in kept)
    noise = None if data.noise is None else data.noise.of(kept)
    left = [data.client_name(client) for client in sorted(set(range(data.clients)) - set(kept))]
    fewer = replace(
        data,
        train_index=np.concatenate(train),
        train_offsets=offsets_of(map(len, train)),
        test_index=np.concatenate(test),
        test_offsets=offsets_of(map(len, test)),
        client_names=names,
        noise=noise,
    )
    return fewer, left
