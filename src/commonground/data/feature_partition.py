"""Equal labels, different images: the heterogeneous features of Bao, Crawshaw and Liu 2024."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from commonground.data.arrays import Indices, Split
from commonground.data.partition_counts import number_of_clients, number_text, split_of
from commonground.data.source import Source
from commonground.errors import ConfigError, DataError
from commonground.keys import numpy_stream

__all__ = ["Features"]

PARITIES = ("even", "odd")


@dataclass(frozen=True)
class Features:
    """Every client has the same share of even and odd labels, but other images: which digits are even, say, differs.

    A sample's new label is its class number modulo 2. Of the samples of each parity a fraction h, drawn at random, is
    sorted by original class (ties in random order) and dealt to the clients in contiguous blocks; the rest is dealt at
    random. Every sample is used once, and the clients hold equal numbers (±1) of each parity, of its sorted part and of
    the rest; the larger parts go to the first clients. Test samples are dealt by the same protocol with the blocks in
    the same order, so a client is tested on the kinds of images it trains on, up to where classes are cut between two
    clients. With h = 0 each parity is IID; with h = 1 each client has neighbouring classes alone.

    Source: Bao, Crawshaw and Liu 2024, section 8.1, with the protocol of Karimireddy et al. 2020. A known difference:
    the authors' code draws the fraction from all samples together, so that the parities are equal only on average, and
    drops the samples that do not divide evenly by the number of clients.

    Attributes:
        h: heterogeneity, from 0 to 1.
    """

    h: float

    def __post_init__(self) -> None:
        number = isinstance(self.h, (int, float, np.integer, np.floating)) and not isinstance(self.h, bool)
        if not (number and math.isfinite(self.h) and 0 <= self.h <= 1):
            raise ConfigError(f"h of the features partition must be a number from 0 to 1, not {self.h!r}")

    def __call__(self, source: Source, clients: int | None, seed: int) -> Split:
        """See :class:`~commonground.data.partitions.Partition`; the source has its original labels."""
        n = number_of_clients(clients, source)
        owners = []
        for split, y, kind in (("train", source.y_train, "training"), ("test", source.y_test, "test")):
            owner = np.empty(len(y), dtype=np.int64)
            for parity in (0, 1):
                rows = np.flatnonzero(y % 2 == parity)
                self._check(rows, y, parity, kind, n, source)
                rows = numpy_stream(seed, "partition features", split, parity).permutation(rows)
                self._deal(owner, rows, y, n)
            owners.append(owner)
        return split_of(owners[0], owners[1], n)

    def relabelled(self, source: Source) -> Source:
        """The source with parities as labels.

        Raises:
            DataError: the targets are no classes.
        """
        if not source.task.softmax:
            raise DataError(
                f"the features partition needs samples with classes, and {source.name!r} has {source.task.counted}"
            )
        return replace(source, y_train=source.y_train % 2, y_test=source.y_test % 2, classes=2, class_names=PARITIES)

    def _deal(self, owner: Indices, rows: Indices, y: Indices, clients: int) -> None:
        """Write the owners of one parity's ``rows``, which are in random order."""
        cut = round(self.h * len(rows))
        chosen, rest = rows[:cut], rows[cut:]
        chosen = chosen[np.argsort(y[chosen], kind="stable")]
        blocks = _even_sizes(len(chosen), clients)
        # Even as a whole too: where the sorted part has its +1, the rest may lack one.
        owner[chosen] = np.repeat(np.arange(clients), blocks)
        owner[rest] = np.repeat(np.arange(clients), _even_sizes(len(rows), clients) - blocks)

    @staticmethod
    def _check(rows: Indices, y: Indices, parity: int, kind: str, clients: int, source: Source) -> None:
        if len(rows) < clients:
            raise DataError(
                f"{source.name!r} has {len(rows)} {kind} samples of {PARITIES[parity]} labels for {clients} clients; "
                "each needs at least 1"
            )
        if kind == "training" and y[rows].min() == y[rows].max():
            raise DataError(
                f"the {len(rows)} {kind} samples of {PARITIES[parity]} labels of {source.name!r} are all of one "
                f"class; dealing them to {clients} clients by class needs at least 2"
            )

    def __str__(self) -> str:
        return f"features:{number_text(self.h)}"


def _even_sizes(total: int, parts: int) -> Indices:
    """``total`` as ``parts`` whole numbers that differ by at most 1, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)
