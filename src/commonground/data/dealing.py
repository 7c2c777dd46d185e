"""From a source and a partition to a federated data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from commonground.data.arrays import Split
from commonground.data.federated import FederatedDataset
from commonground.data.partitions import Column, Partition
from commonground.data.source import Origin, Source
from commonground.data.validation import relearnt
from commonground.errors import ConfigError
from commonground.registration import is_ours
from commonground.user_code import check_takes, failing_as

__all__ = ["deal"]


def deal(source: Source, partition: Partition, clients: int | None, seed: int) -> FederatedDataset:
    """Deal a source's samples to clients. Rows of a table that are nobody's teach its encoders and scales nothing.

    Args:
        source: the samples.
        partition: who gets which (:mod:`commonground.data.partitions`). If it has a method ``relabelled(source)``,
            the data set takes its labels and classes from what that returns.
        clients: how many; None only where the partition knows it (a client column).
        seed: keys every draw of the partition.

    Raises:
        ConfigError: a partition of the user's own is no function of these three, or gives no split.
        DataError: the partition is impossible for these samples.
        ModelError: a partition of the user's own fails.
    """
    relabelled: Callable[[Source], Source] | None = getattr(partition, "relabelled", None)
    labelled = source if relabelled is None else relabelled(source)
    split = partition(source, clients, seed) if is_ours(type(partition)) else _own(partition, source, clients, seed)
    data = FederatedDataset(
        name=source.name,
        x_train=source.x_train,
        y_train=labelled.y_train,
        x_test=source.x_test,
        y_test=labelled.y_test,
        classes=labelled.classes,
        class_names=labelled.class_names,
        train_index=split.train_index,
        train_offsets=split.train_offsets,
        test_index=split.test_index,
        test_offsets=split.test_offsets,
        client_names=split.client_names,
        preprocess=source.preprocess,
        task=source.task,
        origin=_with_clients(source.origin, partition),
    )
    return data if len(split.train_index) == len(source.y_train) else relearnt(data)


def _own(partition: Partition, source: Source, clients: int | None, seed: int) -> Split:
    """What a user's own partition gives, if it is a split."""
    if not callable(partition):
        raise ConfigError(
            f"a partition is a text, or a function that deals samples, and not a {type(partition).__name__}"
        )
    check_takes(partition, "the partition", "source", "clients", "seed")
    with failing_as("the partition failed"):
        split = partition(source, clients, seed)
    if not isinstance(split, Split):
        raise ConfigError(
            f"the partition gave what is a {type(split).__name__}, and must give a Split; Split.of_rows(train, test) "
            "makes one of each client's row numbers"
        )
    names = ("train_index", "train_offsets", "test_index", "test_offsets")
    arrays = {name: np.asarray(getattr(split, name)) for name in names}
    for name, given in arrays.items():
        if not np.issubdtype(given.dtype, np.integer):
            raise ConfigError(f"{name} of the partition's split is {given.dtype}; it must be whole numbers")
    return Split(**arrays, client_names=split.client_names)


def _with_clients(origin: Origin, partition: Partition) -> Origin:
    """Of texts or pictures that were read from a user's files, with the column that says the clients, if one does."""
    if not origin.read:
        return origin
    read = {name: value for name, value in origin.read.items() if name != "client_column"}
    return replace(origin, read=read | ({"client_column": partition.name} if isinstance(partition, Column) else {}))
