"""Who gets which samples.

A partition is a frozen dataclass; called with a source, a number of clients and a seed it returns a
:class:`~commonground.data.federated.Split`. Equal arguments give equal splits. ``str(partition)`` is the text that
:func:`parse_partition` reads back.

Most partitions come down to one matrix: how many samples of each class every client gets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from commonground.data.federated import Indices, Split
from commonground.data.sources.base import Source, sorted_names
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream

__all__ = ["IID", "Column", "Dirichlet", "Labels", "LogNormal", "Partition", "Shards", "parse_partition"]

Weights = npt.NDArray[np.float64]

_ATTEMPTS = 100  # redraws before a random partition is refused


@runtime_checkable
class Partition(Protocol):
    """Deals a source's samples to clients."""

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """Who owns which rows.

        Args:
            source: the samples (only labels and columns are read).
            clients: how many clients; None only where the source knows it (:class:`Column`).
            seed: keys every draw.

        Raises:
            ConfigError: a setting is out of range.
            DataError: these samples cannot be dealt so.
        """
        ...


@dataclass(frozen=True)
class IID:
    """Every client gets an equal number (±1) of samples drawn at random; training and test samples alike."""

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`Partition`."""
        n = _number_of_clients(clients, source)
        return _split(
            _deal_equally(len(source.y_train), n, numpy_stream(seed, "partition iid", "train")),
            _deal_equally(len(source.y_test), n, numpy_stream(seed, "partition iid", "test")),
            n,
        )

    def __str__(self) -> str:
        return "iid"


@dataclass(frozen=True)
class Shards:
    """Every client gets single-class shards of exactly ``classes_per_client`` different classes.

    There are clients times classes_per_client shards, spread over the classes as evenly as possible (which classes get
    one more is random), and every class's samples are spread over its shards as evenly as possible. Which client
    holds which classes is random, every class is used when there are enough shards, and a client's test samples
    are of exactly its training classes. As in FedRep (Collins et al. 2021, section 5), after McMahan et al. 2017; the
    FedRep authors' code may give a client two shards of one class, this does not.

    Attributes:
        classes_per_client: S.
    """

    classes_per_client: int

    def __post_init__(self) -> None:
        _at_least_one("classes per client", self.classes_per_client)

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`Partition`."""
        n = _number_of_clients(clients, source)
        shards = n * self.classes_per_client
        if shards > len(source.y_train):
            raise DataError(
                f"{n} clients of {self.classes_per_client} classes make {shards} shards, "
                f"but {source.name!r} has only {len(source.y_train)} training samples"
            )
        holds = _assign_classes(n, self.classes_per_client, source, numpy_stream(seed, "partition shards", "classes"))
        counts = {}
        for split, y in (("train", source.y_train), ("test", source.y_test)):
            rng = numpy_stream(seed, "partition shards", "sizes", split)
            counts[split] = _share_evenly(holds, _class_sizes(y, source), source, split, rng)
        return _split_by_counts(source, counts["train"], counts["test"], seed)

    def __str__(self) -> str:
        return f"shards:{self.classes_per_client}"


@dataclass(frozen=True)
class Labels:
    """Every client gets whole classes, in order and without overlap: 5 clients of 10 classes hold {0, 1}, {2, 3}, ….

    The number of classes must be a multiple of the number of clients. Nothing is random but the test samples of
    ``test="iid"``. As in RoLoRA (Chen et al. 2025, section 5.2).

    Attributes:
        test: which test samples a client gets: ``same`` classes as it trains on, or an equal part (±1) of all of them
            (``iid``), so that the mean over clients of a global model's accuracy is that on the whole test set.
    """

    test: Literal["same", "iid"] = "same"

    def __post_init__(self) -> None:
        if self.test not in ("same", "iid"):
            raise ConfigError(f"test samples of the labels partition are 'same' or 'iid', not {self.test!r}")

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`Partition`."""
        n = _number_of_clients(clients, source)
        if source.classes % n:
            raise DataError(
                f"the {source.classes} classes of {source.name!r} cannot be dealt to {n} clients as whole classes; "
                f"take a number of clients that divides {source.classes}"
            )
        owners = [y * n // source.classes for y in (source.y_train, source.y_test)]
        for owner, split in zip(owners, ("training", "test"), strict=True):
            for client in np.flatnonzero(np.bincount(owner, minlength=n) == 0)[:1]:
                raise DataError(f"the classes of client {client} have no {split} samples of {source.name!r}")
        if self.test == "iid":
            owners[1] = _deal_equally(len(source.y_test), n, numpy_stream(seed, "partition labels", "test"))
        return _split(owners[0], owners[1], n)

    def __str__(self) -> str:
        return "labels" if self.test == "same" else "labels:test=iid"


@dataclass(frozen=True)
class Dirichlet:
    """Every class is dealt in proportions drawn from a symmetric Dirichlet distribution over the clients.

    The smaller ``alpha``, the fewer classes a client has. Counts are exact (largest remainder), every training sample
    is used once, and test samples follow the same proportions: a client's test samples are of its training classes
    only, and of all of them wherever a class has enough test samples. Clients left with fewer than ``minimum``
    training samples or without a test sample are drawn again. As Hsu et al. 2019, in the per-class form of Yurochkin
    et al. 2019.

    Attributes:
        alpha: concentration, positive.
        minimum: training samples that every client has at least.
    """

    alpha: float
    minimum: int = 2

    def __post_init__(self) -> None:
        _positive("alpha", self.alpha)
        _at_least_one("the smallest number of samples", self.minimum)

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`Partition`."""
        n = _number_of_clients(clients, source)
        if n * self.minimum > len(source.y_train):
            raise DataError(
                f"{n} clients of at least {self.minimum} samples need {n * self.minimum} training samples; "
                f"{source.name!r} has {len(source.y_train)}"
            )
        train_sizes, test_sizes = _class_sizes(source.y_train, source), _class_sizes(source.y_test, source)
        log_gamma = np.empty((n, source.classes))
        lacking = np.ones(n, dtype=bool)
        for attempt in range(_ATTEMPTS):
            rng = numpy_stream(seed, "partition dirichlet", attempt)
            log_gamma[lacking] = self._log_gamma(rng, (int(lacking.sum()), source.classes))
            shares = np.exp(log_gamma - log_gamma.max(axis=0))  # a Dirichlet draw is gammas over their sum
            train = _apportion(train_sizes, shares.T).T
            test = _test_counts(train, test_sizes)
            lacking = (train.sum(axis=1) < self.minimum) | (test.sum(axis=1) < 1)
            if not lacking.any():
                return _split_by_counts(source, train, test, seed)
        raise DataError(
            f"after {_ATTEMPTS} draws of {self} for {n} clients, {lacking.sum()} of them still had fewer than "
            f"{self.minimum} training samples or no test sample of {source.name!r} "
            f"({len(source.y_train)} training and {len(source.y_test)} test samples): "
            "take a larger alpha or fewer clients"
        )

    def _log_gamma(self, rng: np.random.Generator, shape: tuple[int, int]) -> Weights:
        # G(alpha) = G(alpha + 1) * U^(1/alpha): in logarithms, because G itself underflows to 0 for small alpha.
        log_gamma = np.log(rng.standard_gamma(self.alpha + 1, shape)) + np.log1p(-rng.random(shape)) / self.alpha
        return np.maximum(log_gamma, -1e300)

    def __str__(self) -> str:
        return f"dirichlet:{_number(self.alpha)}" + (f",min={self.minimum}" if self.minimum != 2 else "")


@dataclass(frozen=True)
class LogNormal:
    """Clients of log-normal sizes, optionally with a few random classes each.

    FedRep's FEMNIST is ``LogNormal(mean=148, minimum=50, classes_per_client=3)`` with 150 clients (Collins et al. 2021,
    section 5, tables 1 and 2; after Li et al. 2019).

    A client's training size is ``minimum`` plus a log-normal part, scaled so that all sizes add up to exactly
    clients times mean. With ``classes_per_client`` every client holds that many classes, in random proportions and at
    least one sample of each; test samples are then of the same classes, in the same proportions. Without it samples
    are drawn from all classes alike. No sample is used twice. The paper does not say whether its 148 counts test
    samples; here it does not.

    Attributes:
        mean: training samples per client on average; None uses as much of the data as fits.
        sigma: standard deviation of the logarithm of the log-normal part.
        minimum: training samples that every client has at least.
        classes_per_client: S, or None for all classes.
    """

    mean: float | None = None
    sigma: float = 1.0
    minimum: int = 10
    classes_per_client: int | None = None

    def __post_init__(self) -> None:
        _positive("sigma", self.sigma)
        _at_least_one("the smallest number of samples", self.minimum)
        if self.mean is not None:
            _positive("mean", self.mean)
            if self.mean < self.minimum:
                raise ConfigError(f"the mean size {self.mean:g} is below the smallest size {self.minimum}")
        if self.classes_per_client is not None:
            _at_least_one("classes per client", self.classes_per_client)
            if self.minimum < self.classes_per_client:
                raise ConfigError(
                    f"the smallest size {self.minimum} is below the {self.classes_per_client} classes per client; "
                    "every client needs a sample of each of its classes"
                )

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`Partition`."""
        n = _number_of_clients(clients, source)
        there = len(source.y_train)
        total = there if self.mean is None else round(n * self.mean)
        if total > there:
            raise DataError(
                f"{n} clients of {self.mean:g} samples on average ask for {total} training samples; "
                f"{source.name!r} has {there}"
            )
        if n * self.minimum > total:
            raise DataError(
                f"{n} clients of at least {self.minimum} samples need {n * self.minimum} training samples; "
                f"{total} of {source.name!r} are to be dealt"
            )
        if self.classes_per_client is None:
            return self._all_classes(source, n, total, seed)
        return self._few_classes(source, n, total, self.classes_per_client, seed)

    def _sizes(self, clients: int, total: int, rng: np.random.Generator) -> Indices:
        logarithm = rng.normal(0.0, self.sigma, clients)
        part = np.exp(logarithm - logarithm.max())  # only ratios matter; so a large sigma cannot overflow
        return self.minimum + _apportion(total - clients * self.minimum, part)

    def _all_classes(self, source: Source, clients: int, total: int, seed: int) -> Split:
        train_sizes = self._sizes(clients, total, numpy_stream(seed, "partition lognormal", "sizes"))
        test_total = max(clients, round(len(source.y_test) * total / len(source.y_train)))
        test_sizes = _test_counts(train_sizes[:, np.newaxis], np.array([test_total]))[:, 0]
        owners = []
        for split, sizes, samples in (
            ("train", train_sizes, len(source.y_train)),
            ("test", test_sizes, len(source.y_test)),
        ):
            rows = numpy_stream(seed, "partition lognormal", split).permutation(samples)[: sizes.sum()]
            owner = np.full(samples, -1, dtype=np.int64)
            owner[rows] = np.repeat(np.arange(clients), sizes)
            owners.append(owner)
        return _split(owners[0], owners[1], clients)

    def _few_classes(self, source: Source, clients: int, total: int, per_client: int, seed: int) -> Split:
        capacity = _class_sizes(source.y_train, source)
        for attempt in range(_ATTEMPTS // 10):
            holds = _assign_classes(
                clients, per_client, source, numpy_stream(seed, "partition lognormal", "classes", attempt)
            )
            goal = total
            while goal >= clients * self.minimum:
                rng = numpy_stream(seed, "partition lognormal", "sizes", attempt)  # the same draw, only scaled
                sizes = self._sizes(clients, goal, rng)
                weights = rng.exponential(size=holds.shape) * holds * capacity  # a uniform draw of the proportions
                train = holds + _apportion(sizes - per_client, weights)
                if _move_into_capacity(train, holds, capacity):
                    return _split_by_counts(source, train, self._test(source, train), seed)
                if self.mean is not None:
                    break
                goal = goal * 19 // 20
        raise DataError(
            f"{total} training samples of {source.name!r} cannot be dealt to {clients} clients of "
            f"{per_client} classes each with sizes {self}: its classes have {capacity.min()} to {capacity.max()} "
            "samples; take a smaller mean or sigma, or more classes per client"
        )

    @staticmethod
    def _test(source: Source, train: Indices) -> Indices:
        there, used = _class_sizes(source.y_test, source), train.sum(axis=0)
        holders = (train > 0).sum(axis=0)
        _enough_for_holders(holders, there, source, "test")
        share = used / np.maximum(_class_sizes(source.y_train, source), 1)
        return _test_counts(train, np.maximum(holders, np.rint(there * share).astype(np.int64)))

    def __str__(self) -> str:
        parts = [] if self.mean is None else [f"mean={_number(self.mean)}"]
        parts += [f"sigma={_number(self.sigma)}", f"min={self.minimum}"]
        parts += [] if self.classes_per_client is None else [f"classes={self.classes_per_client}"]
        return "lognormal:" + ",".join(parts)


@dataclass(frozen=True)
class Column:
    """The natural partition: every distinct value of a column is a client, in sorted order.

    Attributes:
        name: of the column.
    """

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("A column partition needs the column's name: column:NAME")

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`Partition`. ``clients``, when given, must be the number of distinct values."""
        if self.name not in source.train_columns or self.name not in source.test_columns:
            known = ", ".join(map(repr, source.train_columns)) or "none"
            raise DataError(f"{source.name!r} has no client column {self.name!r}; its columns are: {known}")
        train, test = (np.asarray(part[self.name]).astype(str) for part in (source.train_columns, source.test_columns))
        names = sorted_names(np.concatenate([train, test]))
        if clients is not None and clients != len(names):
            raise DataError(
                f"column {self.name!r} of {source.name!r} has {len(names)} distinct values, not the {clients} clients "
                "asked for"
            )
        for values, split in ((train, "training"), (test, "test")):
            there = set(values.tolist())
            without = [name for name in names if name not in there]
            if without:
                raise DataError(
                    f"{len(without)} of the {len(names)} clients in column {self.name!r} of {source.name!r} "
                    f"have no {split} samples (the first is {without[0]!r})"
                )
        sorter = np.argsort(names)
        owners = [sorter[np.searchsorted(names, values, sorter=sorter)] for values in (train, test)]
        return _split(owners[0], owners[1], len(names), names)

    def __str__(self) -> str:
        return f"column:{self.name}"


# -- from counts to rows ----------------------------------------------------------------------------------------------


def _split(train_owner: Indices, test_owner: Indices, clients: int, names: tuple[str, ...] | None = None) -> Split:
    """CSR form of each sample's owner (-1: nobody). Rows of a client rise, so equal owners give equal bytes."""
    return Split(*_rows_by_owner(train_owner, clients), *_rows_by_owner(test_owner, clients), client_names=names)


def _rows_by_owner(owner: Indices, clients: int) -> tuple[Indices, Indices]:
    rows = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    return rows[len(rows) - sizes.sum() :], np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _split_by_counts(source: Source, train_counts: Indices, test_counts: Indices, seed: int) -> Split:
    """Give every client its count of each class, drawn at random among the class's samples without reuse."""
    owners = []
    for split, y, counts in (("train", source.y_train, train_counts), ("test", source.y_test, test_counts)):
        owner = np.full(len(y), -1, dtype=np.int64)
        for label in np.flatnonzero(counts.any(axis=0)):
            rng = numpy_stream(seed, "partition samples", split, int(label))
            rows = rng.permutation(np.flatnonzero(y == label))
            owner[rows[: counts[:, label].sum()]] = np.repeat(np.arange(len(counts)), counts[:, label])
        owners.append(owner)
    return _split(owners[0], owners[1], len(train_counts))


def _deal_equally(samples: int, clients: int, rng: np.random.Generator) -> Indices:
    owner = np.empty(samples, dtype=np.int64)
    owner[rng.permutation(samples)] = np.arange(samples) % clients
    return owner


# -- counts -----------------------------------------------------------------------------------------------------------


def _assign_classes(clients: int, per_client: int, source: Source, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which client holds which classes: bool [clients, classes], ``per_client`` true in every row, columns even (±1).

    Clients draw in turn, without replacement, with weights equal to what is left of each class. A class with as many
    shards left as there are clients left must be drawn by each of them; taking those first is all it takes for the
    draw to always succeed. Clients are shuffled afterwards, so that none is favoured by its turn.
    """
    classes = source.classes
    if per_client > classes:
        raise DataError(f"A client cannot hold {per_client} different classes: {source.name!r} has {classes}")
    left = np.full(classes, clients * per_client // classes)
    left[rng.permutation(classes)[: clients * per_client % classes]] += 1
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


def _share_evenly(
    holds: npt.NDArray[np.bool_], class_sizes: Indices, source: Source, split: str, rng: np.random.Generator
) -> Indices:
    """Counts [clients, classes]: every class spread over its holders in equal parts (±1)."""
    _enough_for_holders(holds.sum(axis=0), class_sizes, source, split)
    counts = np.zeros(holds.shape, dtype=np.int64)
    for label in np.flatnonzero(holds.any(axis=0)):
        holders = rng.permutation(np.flatnonzero(holds[:, label]))
        size = int(class_sizes[label])
        counts[holders, label] = size // len(holders)
        counts[holders[: size % len(holders)], label] += 1
    return counts


def _apportion(total: int | Indices, weights: Weights | Indices) -> Indices:
    """Split ``total`` [...] into whole parts in proportion to ``weights`` [..., parts] by largest remainder.

    With whole weights and a total of at most their sum, no part exceeds its weight.
    """
    wanted = np.asarray(total)[..., np.newaxis]
    quota = wanted * (weights / np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(float).tiny))
    parts: Indices = np.floor(quota).astype(np.int64)
    rank = np.argsort(np.argsort(parts - quota, axis=-1, kind="stable"), axis=-1, kind="stable")
    parts += rank < wanted - parts.sum(axis=-1, keepdims=True)
    return parts


def _test_counts(train: Indices, totals: Indices) -> Indices:
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
            test[holds, label] = 1 + _apportion(total - len(holds), np.maximum(fair - 1, 0)) if len(holds) else 0
        else:
            order = np.lexsort((-train[holds, label], test[holds].sum(axis=1) > 0))
            test[holds[order[:total]], label] = 1
    return test


def _move_into_capacity(counts: Indices, holds: npt.NDArray[np.bool_], capacity: Indices) -> bool:
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
            moved = _apportion(amount, spare)
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


def _class_sizes(y: Indices, source: Source) -> Indices:
    return np.bincount(y, minlength=source.classes)


# -- checks -----------------------------------------------------------------------------------------------------------


def _number_of_clients(clients: int | None, source: Source) -> int:
    if clients is None:
        raise ConfigError("the number of clients is missing; only a client column knows it by itself")
    _at_least_one("the number of clients", clients)
    for samples, split in ((len(source.y_train), "training"), (len(source.y_test), "test")):
        if clients > samples:
            raise DataError(
                f"{clients} clients need at least {clients} {split} samples, one each; {source.name!r} has {samples}"
            )
    return clients


def _enough_for_holders(holders: Indices, there: Indices, source: Source, split: str) -> None:
    for label in np.flatnonzero(holders > there)[:1]:
        raise DataError(
            f"class {source.class_names[label]!r} of {source.name!r} has {there[label]} {split} samples "
            f"for the {holders[label]} clients that hold it; each needs at least 1"
        )


def _at_least_one(what: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ConfigError(f"{what[0].upper()}{what[1:]} must be a whole number of at least 1, not {value!r}")


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{what} must be a positive number, not {value!r}")


# -- text -------------------------------------------------------------------------------------------------------------

_FORMS = (
    "iid, shards:CLASSES, labels, dirichlet:ALPHA, lognormal:mean=M,sigma=S,min=K,classes=C, features:H, column:NAME"
)


def parse_partition(text: str, classes_per_client: int | None = None) -> Partition:
    """The partition that a text names.

    Args:
        text: ``iid``, ``shards``, ``dirichlet:0.5``, ``lognormal``, ``lognormal:mean=148,sigma=1,min=50``,
            ``features:0.5``, ``column:hospital``; also whatever ``str`` of a partition gives.
        classes_per_client: S of ``shards`` and ``lognormal``.

    Raises:
        ConfigError: the text is none of these, or ``classes_per_client`` is missing, of no use, or contradicts it.

    >>> str(parse_partition("lognormal:mean=148,min=50", classes_per_client=3))
    'lognormal:mean=148,sigma=1,min=50,classes=3'
    """
    kind, _, rest = text.strip().partition(":")
    if kind == "column":
        _no_classes(text, classes_per_client)
        return Column(rest)
    if kind == "iid" and not rest:
        _no_classes(text, classes_per_client)
        return IID()
    if kind == "shards":
        values = _values(text, rest, {"classes": int}, "classes")
        classes = _one_of(text, values.get("classes"), classes_per_client)
        if classes is None:
            raise ConfigError("the shards partition needs the classes per client, as in shards:2")
        return Shards(int(classes))
    if kind == "labels":
        _no_classes(text, classes_per_client)
        return Labels(_values(text, rest, {"test": str}).get("test", "same"))
    if kind == "dirichlet":
        _no_classes(text, classes_per_client)
        values = _values(text, rest, {"alpha": float, "min": int}, "alpha")
        if "alpha" not in values:
            raise ConfigError("the dirichlet partition needs its alpha, as in dirichlet:0.5")
        return Dirichlet(values["alpha"], **({"minimum": int(values["min"])} if "min" in values else {}))
    if kind == "features":
        from commonground.data.feature_partition import Features  # builds on this module

        _no_classes(text, classes_per_client)
        values = _values(text, rest, {"h": float}, "h")
        if "h" not in values:
            raise ConfigError("the features partition needs its h, as in features:0.5")
        return Features(values["h"])
    if kind == "lognormal":
        values = _values(text, rest, {"mean": float, "sigma": float, "min": int, "classes": int})
        classes = _one_of(text, values.get("classes"), classes_per_client)
        return LogNormal(
            mean=values.get("mean"),
            sigma=values.get("sigma", LogNormal.sigma),
            minimum=int(values.get("min", max(LogNormal.minimum, classes or 0))),
            classes_per_client=classes,
        )
    raise ConfigError(f"unknown partition {text!r}; it is one of: {_FORMS}")


def _number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _values(text: str, rest: str, kinds: dict[str, type], bare: str | None = None) -> dict[str, Any]:
    """``key=value`` parts by key; one part may be a value alone, which then belongs to ``bare``."""
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            key, value = bare or key, key
        if key not in kinds or key in values or not value:
            raise ConfigError(f"partition {text!r}: {part!r} is not understood; the forms are: {_FORMS}")
        try:
            values[key] = kinds[key](value)
        except ValueError:
            kind = "whole number" if kinds[key] is int else "number"
            raise ConfigError(f"partition {text!r}: {key} must be a {kind}, not {value!r}") from None
    return values


def _one_of(text: str, in_text: int | None, given: int | None) -> int | None:
    if in_text is not None and given is not None and in_text != given:
        raise ConfigError(f"partition {text!r} says {in_text} classes per client, the setting says {given}")
    return given if in_text is None else in_text


def _no_classes(text: str, given: int | None) -> None:
    if given is not None:
        raise ConfigError(f"classes per client ({given}) have no meaning for the partition {text!r}")
