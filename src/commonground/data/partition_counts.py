"""The arithmetic of partitions: how many samples of each class every client gets, and from counts to rows."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Indices, Split, offsets_of
from commonground.data.source import Source
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream

__all__ = [
    "Weights",
    "apportion",
    "assign_classes",
    "at_least_one",
    "class_sizes",
    "consecutive_classes",
    "counts_of_test",
    "deal_equally",
    "enough_for_holders",
    "move_into_capacity",
    "number_of_clients",
    "number_text",
    "positive",
    "share_evenly",
    "split_by_counts",
    "split_of",
]


Weights = npt.NDArray[np.float64]


def split_of(train_owner: Indices, test_owner: Indices, clients: int, names: tuple[str, ...] | None = None) -> Split:
    """CSR form of each sample's owner (-1: nobody). Rows of a client rise, so equal owners give equal bytes."""
    return Split(*_rows_by_owner(train_owner, clients), *_rows_by_owner(test_owner, clients), client_names=names)


def _rows_by_owner(owner: Indices, clients: int) -> tuple[Indices, Indices]:
    rows = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    return rows[len(rows) - sizes.sum() :], offsets_of(sizes)


def split_by_counts(source: Source, train_counts: Indices, test_counts: Indices, seed: int) -> Split:
    """Give every client its count of each class, drawn at random among the class's samples without reuse."""
    owners = []
    for split, y, counts in (("train", source.y_train, train_counts), ("test", source.y_test, test_counts)):
        owner = np.full(len(y), -1, dtype=np.int64)
        for label in np.flatnonzero(counts.any(axis=0)):
            rng = numpy_stream(seed, "partition samples", split, int(label))
            rows = rng.permutation(np.flatnonzero(y == label))
            owner[rows[: counts[:, label].sum()]] = np.repeat(np.arange(len(counts)), counts[:, label])
        owners.append(owner)
    return split_of(owners[0], owners[1], len(train_counts))


def deal_equally(samples: int, clients: int, rng: np.random.Generator) -> Indices:
    """The owner of each sample: at random, in equal parts (±1)."""
    owner = np.empty(samples, dtype=np.int64)
    owner[rng.permutation(samples)] = np.arange(samples) % clients
    return owner


def assign_classes(clients: int, per_client: int, source: Source, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which client holds which classes: bool [clients, classes], ``per_client`` true in every row, columns even (±1).

    Clients draw in turn, without replacement, with weights equal to what is left of each class. A class with as many
    shards left as there are clients left must be drawn by each of them; taking those first is all it takes for the
    draw to always succeed. Clients are shuffled afterwards, so that none is favoured by its turn.
    """
    classes = _enough_classes(per_client, source)
    left = _shards_of_classes(clients * per_client, classes, rng)
    holds = np.zeros((clients, classes), dtype=bool)
    noise = rng.gumbel(size=(clients, classes))  # the largest log(weight) + Gumbel noise = a draw by weight
    with np.errstate(divide="ignore"):
        for client in range(clients):
            score = np.log(left) + noise[client]
            score[left == clients - client] = np.inf
            chosen = np.argpartition(-score, per_client - 1)[:per_client]
            holds[client, chosen] = True
            left[chosen] -= 1
    return rng.permutation(holds, axis=0)


def consecutive_classes(clients: int, per_client: int, source: Source) -> npt.NDArray[np.bool_]:
    """Which client holds which classes: client i holds i, i + 1, …, modulo their number; bool [clients, classes]."""
    classes = _enough_classes(per_client, source)
    return (np.arange(classes) - np.arange(clients)[:, np.newaxis]) % classes < per_client


def _enough_classes(per_client: int, source: Source) -> int:
    if per_client > source.classes:
        raise DataError(f"A client cannot hold {per_client} different classes: {source.name!r} has {source.classes}")
    return source.classes


def deal_shards(clients: int, per_client: int, source: Source, rng: np.random.Generator) -> Indices:
    """How many shards of each class every client holds [clients, classes], ``per_client`` in every row.

    The shards are shuffled and dealt in turn, so that a client may hold several of one class.
    """
    classes = source.classes
    shards = np.repeat(np.arange(classes), _shards_of_classes(clients * per_client, classes, rng))
    held = np.zeros((clients, classes), dtype=np.int64)
    np.add.at(held, (np.repeat(np.arange(clients), per_client), rng.permutation(shards)), 1)
    return held


def _shards_of_classes(shards: int, classes: int, rng: np.random.Generator) -> Indices:
    """How many shards there are of each class: equally many, ±1; which classes have one more is random."""
    each = np.full(classes, shards // classes)
    each[rng.permutation(classes)[: shards % classes]] += 1
    return each


def share_evenly(
    held: npt.NDArray[np.bool_] | Indices, totals: Indices, source: Source, split: str, rng: np.random.Generator
) -> Indices:
    """Counts [clients, classes]: every class spread over its shards in equal parts (±1).

    Args:
        held: shards of each class that a client holds; truth values mean one or none.
        totals: samples of each class.
        source, split: for the error.
        rng: says which shards have one sample more.
    """
    enough_for_holders(held.sum(axis=0), totals, source, split)
    counts = np.zeros(held.shape, dtype=np.int64)
    for label in np.flatnonzero(held.any(axis=0)):
        shards = rng.permutation(np.repeat(np.arange(len(held)), held[:, label]))
        size = int(totals[label])
        np.add.at(counts[:, label], shards, size // len(shards))
        np.add.at(counts[:, label], shards[: size % len(shards)], 1)
    return counts


def apportion(total: int | Indices, weights: Weights | Indices) -> Indices:
    """Split ``total`` [...] into whole parts in proportion to ``weights`` [..., parts] by largest remainder.

    With whole weights and a total of at most their sum, no part exceeds its weight.
    """
    wanted = np.asarray(total)[..., np.newaxis]
    quota = wanted * (weights / np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(float).tiny))
    parts: Indices = np.floor(quota).astype(np.int64)
    rank = np.argsort(np.argsort(parts - quota, axis=-1, kind="stable"), axis=-1, kind="stable")
    parts += rank < wanted - parts.sum(axis=-1, keepdims=True)
    return parts


def counts_of_test(train: Indices, totals: Indices) -> Indices:
    """Test counts [clients, classes] in the proportions of the training counts.

    Args:
        train: training counts [clients, classes].
        totals: test samples to deal, per class.

    Returns:
        Zero where ``train`` is. Where a class has a test sample for each client that holds it, each gets at least
        one; otherwise clients without any test sample come first, then those with the most training samples.
    """
    test = np.zeros_like(train)
    holders = (train > 0).sum(axis=0)
    for label in np.argsort(holders > totals, kind="stable"):  # classes with enough first, so that need is known
        holds = np.flatnonzero(train[:, label])
        total = int(totals[label])
        if len(holds) <= total:
            fair = total * train[holds, label] / max(train[:, label].sum(), 1)
            test[holds, label] = 1 + apportion(total - len(holds), np.maximum(fair - 1, 0)) if len(holds) else 0
        else:
            order = np.lexsort((-train[holds, label], test[holds].sum(axis=1) > 0))
            test[holds[order[:total]], label] = 1
    return test


def move_into_capacity(counts: Indices, holds: npt.NDArray[np.bool_], capacity: Indices) -> bool:
    """Change ``counts`` [clients, classes] in place so that no class is used beyond its capacity.

    Sizes of clients and the classes they hold stay (each at least one sample). Samples move from an overfull class to
    one with room along a shortest path of classes that share clients (augmenting paths, Edmonds and Karp 1972),
    so a solution is found whenever there is one.

    Returns:
        Whether it could be done.
    """
    over = counts.sum(axis=0) - capacity
    held = holds.astype(np.float64)
    movable = np.maximum(counts - 1, 0).T @ held  # [from, to]: samples that could change class within their client
    while (over > 0).any():
        path = _shortest_path(movable > 0, over)
        if not path:
            return False
        steps = list(pairwise(path))
        amount = int(min([over[path[0]], -over[path[-1]], *(movable[step] for step in steps)]))
        for source, target in steps:
            spare = np.where(holds[:, target], np.maximum(counts[:, source] - 1, 0), 0)
            moved = apportion(amount, spare)
            counts[:, source] -= moved
            counts[:, target] += moved
        over[path[0]] -= amount
        over[path[-1]] += amount
        movable[path] = np.maximum(counts[:, path] - 1, 0).T @ held
    return True


def _shortest_path(edges: npt.NDArray[np.bool_], over: Indices) -> list[int]:
    """Classes from an overfull one to one with room, by breadth-first search; empty when there is no way."""
    came_from: dict[int, int | None] = {int(label): None for label in np.flatnonzero(over > 0)}
    queue = list(came_from)
    for label in queue:  # grows while it is read
        if over[label] < 0:
            path = [label]
            while (before := came_from[path[-1]]) is not None:
                path.append(before)
            return path[::-1]
        for following in np.flatnonzero(edges[label]).tolist():
            if following not in came_from:
                came_from[following] = label
                queue.append(following)
    return []


def labels_of(source: Source) -> tuple[Indices, Indices]:
    """The classes of a source's training and test samples.

    Raises:
        DataError: its samples have no single class each.
    """
    labels = [source.task.label_of(y) for y in (source.y_train, source.y_test)]
    if labels[0] is None or labels[1] is None:
        raise DataError(
            f"this partition deals samples by class, and {source.name!r} is for {source.task.name}; take iid or a "
            "client column"
        )
    return labels[0], labels[1]


def class_sizes(source: Source) -> tuple[Indices, Indices]:
    """Training and test samples of each class."""
    train, test = (np.bincount(y, minlength=source.classes) for y in labels_of(source))
    return train, test


def number_of_clients(clients: int | None, source: Source) -> int:
    """The number of clients, if it is given and there is a sample for each."""
    if clients is None:
        raise ConfigError("the number of clients is missing; only a client column knows it by itself")
    at_least_one("the number of clients", clients)
    for samples, split in ((len(source.y_train), "training"), (len(source.y_test), "test")):
        if clients > samples:
            whose = (
                "; its rows would be dealt out at random: if a column says whose a row is, name it (--client-column), "
                "or take fewer --clients"
                if source.origin.schema
                else ""
            )
            raise DataError(
                f"{clients} clients need at least {clients} {split} samples, one each; {source.name!r} has "
                f"{samples}{whose}"
            )
    return clients


def enough_for_holders(holders: Indices, there: Indices, source: Source, split: str) -> None:
    """Refuse a class with fewer samples than clients that hold it."""
    for label in np.flatnonzero(holders > there)[:1]:
        raise DataError(
            f"class {source.class_names[label]!r} of {source.name!r} has {there[label]} {split} samples "
            f"for the {holders[label]} clients that hold it; each needs at least 1"
        )


def at_least_one(what: str, value: int) -> None:
    """Refuse what is no whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ConfigError(f"{what[0].upper()}{what[1:]} must be a whole number of at least 1, not {value!r}")


def positive(what: str, value: float) -> None:
    """Refuse what is no positive number."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{what} must be a positive number, not {value!r}")


def number_text(value: float) -> str:
    """The shortest text that reads back as the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))
