"""What a run's last test tells of its clients beside means of scores, wherever each client is tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from commonground.tasks import FineFigures
from commonground.tasks.bounds import Figures

__all__ = ["AddedCounts", "FineRows", "FineScores"]

Counts = Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class FineScores:
    """Figures of some clients, and of all their rows as one set.

    Attributes:
        kinds: what is told, each with its own sums.
        figures: by name [C]; NaN where one is not defined.
        counts: for each kind, sums over all clients' rows.
    """

    kinds: Sequence[FineFigures]
    figures: Figures
    counts: Sequence[Counts]

    @property
    def over_rows(self) -> dict[str, float]:
        """Every figure over all rows as one set; NaN where it is not known."""
        pairs = zip(self.kinds, self.counts, strict=True)
        return {name: value for kind, counts in pairs for name, value in kind.of_counts(counts).items()}

    @property
    def within(self) -> dict[str, float]:
        """Of those that are not exact: how far off they can be."""
        pairs = zip(self.kinds, self.counts, strict=True)
        return {name: value for kind, counts in pairs for name, value in kind.within(counts).items()}

    def bare(self) -> FineScores:
        """Without the kinds, which may hold a user's functions that cannot be sent to another process."""
        return replace(self, kinds=())

    @classmethod
    def join(cls, parts: Sequence[FineScores]) -> FineScores:
        """Of several sets of clients, one after the other."""
        figures = {name: np.concatenate([p.figures[name] for p in parts]) for name in parts[0].figures}
        added = AddedCounts()
        for part in parts:
            added.add(part.counts)
        return replace(parts[0], figures=figures, counts=added.sums())


class AddedCounts:
    """The sums of several sets of clients, added up as they come: those of one set may take half a megabyte."""

    def __init__(self) -> None:
        self._arrays: list[dict[str, npt.NDArray[np.float64]]] = []
        self._numbers: list[dict[str, list[npt.NDArray[np.float64]]]] = []

    def add(self, counts: Sequence[Counts]) -> None:
        """Take in one set's, for each kind; they may be used elsewhere."""
        if not self._arrays:
            self._arrays = [{name: v.copy() for name, v in own.items() if v.size != 1} for own in counts]
            self._numbers = [{name: [v] for name, v in own.items() if v.size == 1} for own in counts]
            return
        for own, arrays, numbers in zip(counts, self._arrays, self._numbers, strict=True):
            for name, whole in arrays.items():
                whole += own[name]
            for name, each in numbers.items():
                each.append(own[name])

    def sums(self) -> list[Counts]:
        """Of all of them, for each kind."""
        pairs = zip(self._arrays, self._numbers, strict=True)
        return [arrays | {name: np.sum(each, axis=0) for name, each in numbers.items()} for arrays, numbers in pairs]


class FineRows:
    """Collects what figures need of the rows of a block of clients, in their order.

    Args:
        kinds: of figures.
    """

    def __init__(self, kinds: Sequence[FineFigures]) -> None:
        self.kinds = kinds
        self._parts: list[list[dict[str, npt.NDArray[Any]]]] = [[] for _ in kinds]

    def add(self, output: Tensor, y: Tensor) -> None:
        """Take in further rows: outputs and targets."""
        for kind, parts in zip(self.kinds, self._parts, strict=True):
            parts.append(kind.of_rows(output, y))

    def scores(self, owner: npt.NDArray[np.int64], clients: int) -> FineScores:
        """The figures of the clients, when all rows are in.

        Args:
            owner: [rows] each row's client, from 0.
            clients: how many there are.
        """
        figures: Figures = {}
        counts = []
        for kind, parts in zip(self.kinds, self._parts, strict=True):
            rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            own, sums = kind.told(rows, owner, clients)
            figures |= own
            counts.append(sums)
        return FineScores(self.kinds, figures, counts)
