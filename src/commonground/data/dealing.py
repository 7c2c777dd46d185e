"""From a source and a partition to a federated data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from commonground.data.federated import FederatedDataset
from commonground.data.partitions import Column, Partition
from commonground.data.sources.base import Source

__all__ = ["deal"]


def deal(source: Source, partition: Partition, clients: int | None, seed: int) -> FederatedDataset:
    """Deal a source's samples to clients.

    Args:
        source: the samples.
        partition: who gets which (:mod:`commonground.data.partitions`). If it has a method ``relabelled(source)``,
            the data set takes its labels and classes from what that returns.
        clients: how many; None only where the partition knows it (a client column).
        seed: keys every draw of the partition.

    Raises:
        DataError: the partition is impossible for these samples.
    """
    relabelled: Callable[[Source], Source] | None = getattr(partition, "relabelled", None)
    labelled = source if relabelled is None else relabelled(source)
    split = partition(source, clients, seed)
    return FederatedDataset(
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
        schema=source.schema,
        about=_about(source, partition) if source.schema is None else source.schema.summary(),
        relearn=source.relearn,
        test_names=source.test_names,
    )


def _about(source: Source, partition: Partition) -> Mapping[str, Any]:
    """How texts or pictures were read, with the column that says the clients, if one does."""
    if not source.about:
        return source.about
    about = {name: value for name, value in source.about.items() if name != "client_column"}
    return {**about, "client_column": partition.name} if isinstance(partition, Column) else about
