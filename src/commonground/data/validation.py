"""Training rows that are held out to judge by: of a tuning grid's candidates, and of the rounds of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from commonground.data.arrays import Indices, held_count, offsets_of
from commonground.data.source import Origin
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream

if TYPE_CHECKING:
    from commonground.data.federated import FederatedDataset
    from commonground.data.source import Source

__all__ = ["held_rows", "hold_out", "relearnt", "validation_split"]


def held_rows(
    data: FederatedDataset,
    clients: Sequence[int],
    fraction: float,
    seed: int,
    numbers: Sequence[int] | None = None,
    *,
    by_class: bool = True,
) -> list[tuple[Any, Any]]:
    """Each client's training rows, those that stay and those held out.

    Of n rows, max(1, round(fraction · n)) are held out and at least one stays, spread over the client's classes in
    proportion; a class keeps a training row where possible. A client with a single row keeps it. Of a table that is
    split by time the last rows are held out, and of one that is split by groups whole groups, at least so many rows; a
    client with one group keeps it.

    Args:
        data: the federated data set.
        clients: whose.
        fraction: between 0 and 1.
        seed: keys the draw, one stream for every client.
        numbers: of the clients in their federation, which key the draw; by default as in ``clients``.
        by_class: false draws rows whatever their class, so that which ones are held out tells nothing of any.

    Raises:
        ConfigError: the fraction is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"the validation share is {fraction:g}; it must lie between 0 and 1")
    related = data.origin.related
    strata = data.strata("train") if by_class else np.zeros(len(data.y_train), dtype=np.int64)
    parts = []
    for client, number in zip(clients, clients if numbers is None else numbers, strict=True):
        rows = data.train_indices(client)
        chosen = np.zeros(len(rows), dtype=bool)
        if len(rows) > 1:
            rng = numpy_stream(seed, "validation", number)
            wanted = held_count(len(rows), fraction)
            if related is None:
                chosen = _stratified(strata[rows], wanted, rng)
            else:
                chosen = related.held(rows, wanted, rng)
        parts.append((rows[~chosen], rows[chosen]))
    return parts


def hold_out(
    data: FederatedDataset,
    fraction: float,
    seed: int,
    numbers: Sequence[int] | None = None,
    *,
    by_class: bool = True,
) -> FederatedDataset:
    """The same clients with a part of their training rows held out for validation; test rows are the same ones.

    A table's encoders and scales are learnt anew, from the training rows that stay.

    Args:
        data, fraction, seed, numbers, by_class: as of :func:`held_rows`. Of clients with numbers none need have two
            training samples.

    Raises:
        ConfigError: the fraction is not between 0 and 1.
        DataError: no client has two training samples.
    """
    parts = held_rows(data, range(data.clients), fraction, seed, numbers, by_class=by_class)
    kept, held = [k for k, _ in parts], [h for _, h in parts]
    if numbers is None and not any(len(rows) for rows in held):
        raise DataError(f"no client of {data.name!r} has {_two(data)}, of which one could be held out")
    return relearnt(
        replace(
            data,
            train_index=np.concatenate(kept),
            train_offsets=offsets_of(map(len, kept)),
            validation_index=np.concatenate(held),
            validation_offsets=offsets_of(map(len, held)),
        )
    )


def relearnt(data: FederatedDataset, taught_by: Indices | None = None) -> FederatedDataset:
    """The same rows of a table with encoders and scales that know only those that some client trains on: rows that are
    held out, cut off or nobody's teach nothing. Other data as they are.

    Args:
        data: the federated data set.
        taught_by: in place of its own training rows.
    """
    if data.origin.relearn is None:
        return data
    marks = np.ones(len(data.y_train), dtype=np.bool_)
    marks[data.train_index if taught_by is None else taught_by] = False
    source = data.origin.relearn(marks)
    changed = {name: getattr(source, name) for name in ("x_train", "x_test", "preprocess", "task")}
    return replace(data, **changed, origin=replace(data.origin, schema=source.origin.schema))


def _stratified(labels: Any, wanted: int, rng: np.random.Generator) -> Any:
    """Which of a client's samples are taken, [n] bool: proportional to classes by largest remainders."""
    n = len(labels)
    present, counts = np.unique(labels, return_counts=True)
    exact = wanted * counts / n
    take = np.floor(exact).astype(int)  # below each count, since wanted < n
    last = take + 1 >= counts  # one more would be the class's last sample
    order = np.lexsort((rng.random(len(present)), -(exact - take), last))
    take[order[: wanted - take.sum()]] += 1
    chosen = np.zeros(n, dtype=bool)
    for label, number in zip(present, take, strict=True):
        chosen[rng.permutation(np.flatnonzero(labels == label))[:number]] = True
    return chosen


def _two(data: FederatedDataset) -> str:
    """What a client needs, so that one can be held out and one stays."""
    related = data.origin.related
    groups = related is not None and related.by == "group"
    return "training samples of two groups (--group-column)" if groups else "two training samples"


def validation_split(data: FederatedDataset, fraction: float = 0.2, seed: int = 0) -> FederatedDataset:
    """A data set whose test samples are taken out of the training samples; the true test samples are not in it.

    Which they are says :func:`held_rows`. Clients of which none can be held out are left out. No array is copied; a
    table's encoders and scales are learnt anew, from the rows that stay.

    Args:
        data: the federated data set.
        fraction: between 0 and 1.
        seed: keys the draw, one stream for every client.

    Raises:
        ConfigError: the fraction is not between 0 and 1.
        DataError: no client has two training samples.
    """
    from commonground.data.federated import FederatedDataset

    found = held_rows(data, range(data.clients), fraction, seed)
    clients = [client for client, (_, held) in enumerate(found) if len(held)]
    parts = [found[client] for client in clients]
    if not clients:
        raise DataError(f"no client of {data.name!r} has {_two(data)}; tuning needs one to train and one to judge")
    kept, taken = [k for k, _ in parts], [h for _, h in parts]
    index, offsets = np.concatenate(kept), offsets_of(map(len, kept))
    learnt, origin = relearnt(data, index), data.origin
    relearn = origin.relearn
    return FederatedDataset(
        name=data.name,  # defaults of model and learning rate follow from it
        x_train=learnt.x_train,
        y_train=data.y_train,
        x_test=learnt.x_train,
        y_test=data.y_train,
        classes=data.classes,
        class_names=data.class_names,
        train_index=index,
        train_offsets=offsets,
        test_index=np.concatenate(taken),
        test_offsets=offsets_of(map(len, taken)),
        client_names=tuple(data.client_name(client) for client in clients),
        preprocess=learnt.preprocess,
        task=learnt.task,
        noise=None if data.noise is None else data.noise.of(clients),
        origin=Origin(related=origin.related, relearn=relearn and partial(_tested_on_training_rows, relearn)),
    )


def _tested_on_training_rows(relearn: Callable[[Any], Source], held: Any) -> Source:
    """A table read anew, whose rows held teach nothing, and whose training rows are the test rows as well."""
    source = relearn(held)
    return replace(source, x_test=source.x_train, y_test=source.y_train, origin=replace(source.origin, test_names=None))
