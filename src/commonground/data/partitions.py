"""Who gets which samples.

A partition is a frozen dataclass; called with a source, a number of clients and a seed it returns a
:class:`~commonground.data.arrays.Split`. Equal arguments give equal splits. ``str(partition)`` is the text that
:func:`~commonground.data.partition_texts.parse_partition` reads back.

Most partitions come down to one matrix: how many samples of each class every client gets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from commonground.data.arrays import Indices, Split
from commonground.data.names import sorted_names
from commonground.data.partition_counts import (
    Weights,
    apportion,
    assign_classes,
    at_least_one,
    class_sizes,
    consecutive_classes,
    counts_of_test,
    deal_equally,
    deal_shards,
    enough_for_holders,
    labels_of,
    move_into_capacity,
    number_of_clients,
    number_text,
    positive,
    share_evenly,
    split_by_counts,
    split_of,
)
from commonground.data.source import Source
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream
from commonground.suggest import meant

__all__ = ["IID", "Column", "Dirichlet", "Labels", "LogNormal", "Partition", "Shards"]

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
        n = number_of_clients(clients, source)
        return split_of(
            deal_equally(len(source.y_train), n, numpy_stream(seed, "partition iid", "train")),
            deal_equally(len(source.y_test), n, numpy_stream(seed, "partition iid", "test")),
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
    are of exactly its training classes. As in FedRep (Collins et al. 2021, section 5), after McMahan et al. 2017.

    Attributes:
        classes_per_client: S.
        repeats: deal the shards as the code of FedRep's authors does: shuffled, without regard to what a client has
            already, so that two of its shards may be of one class. Of 100 clients with 2 of CIFAR-10's classes one in
            eleven then has a single class.
    """

    classes_per_client: int
    repeats: bool = False

    def __post_init__(self) -> None:
        at_least_one("classes per client", self.classes_per_client)

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`Partition`."""
        n = number_of_clients(clients, source)
        shards = n * self.classes_per_client
        if shards > len(source.y_train):
            raise DataError(
                f"{n} clients of {self.classes_per_client} classes make {shards} shards, "
                f"but {source.name!r} has only {len(source.y_train)} training samples"
            )
        draw = deal_shards if self.repeats else assign_classes
        held = draw(n, self.classes_per_client, source, numpy_stream(seed, "partition shards", "classes"))
        counts = {}
        for split, sizes in zip(("train", "test"), class_sizes(source), strict=True):
            rng = numpy_stream(seed, "partition shards", "sizes", split)
            counts[split] = share_evenly(held, sizes, source, split, rng)
        return split_by_counts(source, counts["train"], counts["test"], seed)

    def __str__(self) -> str:
        return f"shards:{self.classes_per_client}" + (",repeats=yes" if self.repeats else "")


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
        n = number_of_clients(clients, source)
        if source.classes % n:
            raise DataError(
                f"the {source.classes} classes of {source.name!r} cannot be dealt to {n} clients as whole classes; "
                f"take a number of clients that divides {source.classes}"
            )
        owners = [y * n // source.classes for y in labels_of(source)]
        for owner, split in zip(owners, ("training", "test"), strict=True):
            for client in np.flatnonzero(np.bincount(owner, minlength=n) == 0)[:1]:
                raise DataError(f"the classes of client {client} have no {split} samples of {source.name!r}")
        if self.test == "iid":
            owners[1] = deal_equally(len(source.y_test), n, numpy_stream(seed, "partition labels", "test"))
        return split_of(owners[0], owners[1], n)

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
        positive("alpha", self.alpha)
        at_least_one("the smallest number of samples", self.minimum)

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`Partition`."""
        n = number_of_clients(clients, source)
        if n * self.minimum > len(source.y_train):
            raise DataError(
                f"{n} clients of at least {self.minimum} samples need {n * self.minimum} training samples; "
                f"{source.name!r} has {len(source.y_train)}"
            )
        train_sizes, test_sizes = class_sizes(source)
        log_gamma = np.empty((n, source.classes))
        lacking = np.ones(n, dtype=bool)
        for attempt in range(_ATTEMPTS):
            rng = numpy_stream(seed, "partition dirichlet", attempt)
            log_gamma[lacking] = self._log_gamma(rng, (int(lacking.sum()), source.classes))
            shares = np.exp(log_gamma - log_gamma.max(axis=0))  # a Dirichlet draw is gammas over their sum
            train = apportion(train_sizes, shares.T).T
            test = counts_of_test(train, test_sizes)
            lacking = (train.sum(axis=1) < self.minimum) | (test.sum(axis=1) < 1)
            if not lacking.any():
                return split_by_counts(source, train, test, seed)
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
        return f"dirichlet:{number_text(self.alpha)}" + (f",min={self.minimum}" if self.minimum != 2 else "")


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
        consecutive: whether client i holds the classes i, i + 1, …, i + S − 1 (modulo their number), in equal parts as
            far as there are samples, as in the script behind FedRep's FEMNIST, rather than drawn classes in random
            proportions.
        fewer: whether as much as fits is dealt where the data have less than ``mean`` for each client; otherwise that
            is refused.
    """

    mean: float | None = None
    sigma: float = 1.0
    minimum: int = 10
    classes_per_client: int | None = None
    consecutive: bool = False
    fewer: bool = False

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)
        at_least_one("the smallest number of samples", self.minimum)
        if self.mean is not None:
            positive("mean", self.mean)
            if self.mean < self.minimum:
                raise ConfigError(f"the mean size {self.mean:g} is below the smallest size {self.minimum}")
        elif self.fewer:
            raise ConfigError("fewer samples than a mean need the mean, as in lognormal:mean=148,fewer=yes")
        if self.classes_per_client is not None:
            at_least_one("classes per client", self.classes_per_client)
            if self.minimum < self.classes_per_client:
                raise ConfigError(
                    f"the smallest size {self.minimum} is below the {self.classes_per_client} classes per client; "
                    "every client needs a sample of each of its classes"
                )
        elif self.consecutive:
            raise ConfigError("consecutive classes need the classes per client, as in lognormal:classes=3")

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`Partition`."""
        n = number_of_clients(clients, source)
        there = len(source.y_train)
        total = there if self.mean is None else round(n * self.mean)
        if self.mean is not None and self.fewer and total > there:
            return replace(self, mean=None, fewer=False)(source, clients, seed)
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
        return self.minimum + apportion(total - clients * self.minimum, part)

    def _all_classes(self, source: Source, clients: int, total: int, seed: int) -> Split:
        train_sizes = self._sizes(clients, total, numpy_stream(seed, "partition lognormal", "sizes"))
        test_total = max(clients, round(len(source.y_test) * total / len(source.y_train)))
        test_sizes = counts_of_test(train_sizes[:, np.newaxis], np.array([test_total]))[:, 0]
        owners = []
        for split, sizes, samples in (
            ("train", train_sizes, len(source.y_train)),
            ("test", test_sizes, len(source.y_test)),
        ):
            rows = numpy_stream(seed, "partition lognormal", split).permutation(samples)[: sizes.sum()]
            owner = np.full(samples, -1, dtype=np.int64)
            owner[rows] = np.repeat(np.arange(clients), sizes)
            owners.append(owner)
        return split_of(owners[0], owners[1], clients)

    def _few_classes(self, source: Source, clients: int, total: int, per_client: int, seed: int) -> Split:
        capacity, _ = class_sizes(source)
        for attempt in range(_ATTEMPTS // 10):
            if self.consecutive:
                holds = consecutive_classes(clients, per_client, source)
            else:
                rng = numpy_stream(seed, "partition lognormal", "classes", attempt)
                holds = assign_classes(clients, per_client, source, rng)
            goal = total
            while goal >= clients * self.minimum:
                rng = numpy_stream(seed, "partition lognormal", "sizes", attempt)  # the same draw, only scaled
                sizes = self._sizes(clients, goal, rng)
                drawn = rng.exponential(size=holds.shape) * holds * capacity  # a uniform draw of the proportions
                weights = holds.astype(float) if self.consecutive else drawn
                train = holds + apportion(sizes - per_client, weights)
                if move_into_capacity(train, holds, capacity):
                    return split_by_counts(source, train, self._test(source, train), seed)
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
        whole, there = class_sizes(source)
        used = train.sum(axis=0)
        holders = (train > 0).sum(axis=0)
        enough_for_holders(holders, there, source, "test")
        share = used / np.maximum(whole, 1)
        return counts_of_test(train, np.maximum(holders, np.rint(there * share).astype(np.int64)))

    def __str__(self) -> str:
        parts = [] if self.mean is None else [f"mean={number_text(self.mean)}"]
        parts += [f"sigma={number_text(self.sigma)}", f"min={self.minimum}"]
        parts += [] if self.classes_per_client is None else [f"classes={self.classes_per_client}"]
        parts += ["consecutive=yes"] if self.consecutive else []
        parts += ["fewer=yes"] if self.fewer else []
        return "lognormal:" + ",".join(parts)


_OF_FEW_ROWS = (
    "; --few-rows drop, pool or shared says what becomes of such clients, and without a column that says which rows "
    "are test rows (--drop it) some of each client's are"
)


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
            near = meant(self.name, source.train_columns)
            raise DataError(f"{source.name!r} has no client column {self.name!r}{near}; its columns are: {known}")
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
                    f"{'has' if len(without) == 1 else 'have'} no {split} samples (the first is {without[0]!r})"
                    + ("" if source.origin.schema is None else _OF_FEW_ROWS)
                )
        sorter = np.argsort(names)
        owners = [sorter[np.searchsorted(names, values, sorter=sorter)] for values in (train, test)]
        return split_of(owners[0], owners[1], len(names), names)

    def __str__(self) -> str:
        return f"column:{self.name}"
