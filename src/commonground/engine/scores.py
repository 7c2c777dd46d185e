"""What a test says of several clients, and what is told of a figure over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from commonground.engine.fine_scores import AddedCounts, FineScores
from commonground.engine.narrow import MANY, Room, narrow
from commonground.tasks import Task
from commonground.tasks.base import Figures

__all__ = ["Scores", "mean_of", "spread_of"]

TOGETHER = 64  # blocks whose figures are added up before those of others


class _Column(NamedTuple):
    """A figure of every client, what stands there for one without a test, and whether all its digits are kept: a metric
    may be made of the differences of large sums.
    """

    values: npt.NDArray[Any]
    untested: float
    exact: bool = False


@dataclass(frozen=True)
class Scores:
    """Test results of several clients; of very many, all but ``sums`` are kept in half of the bytes
    (:mod:`commonground.engine.narrow`).

    Attributes:
        clients: [C] their numbers.
        count: [C] test samples; 0 for a client that was not asked, or was and did not answer.
        loss: [C] mean loss; NaN without samples.
        sums: by name, [C, …]: what the task scores, added up over each client's samples.
        task: says which metrics follow.
        fine: further figures, if the test was a detailed one.
    """

    clients: npt.NDArray[Any]
    count: npt.NDArray[Any]
    loss: npt.NDArray[Any]
    sums: Figures
    task: Task
    fine: FineScores | None = None

    @cached_property
    def metrics(self) -> Figures:
        """Every metric of every client, by name: [C]; NaN where one is not defined."""
        with np.errstate(invalid="ignore", divide="ignore"):  # of a client that did not answer: of no rows
            means = {n: s / self.count.reshape(-1, *[1] * (s.ndim - 1)) for n, s in self.sums.items()}
            plain = {name: narrow(values) for name, values in self.task.metrics(means).items()}
            return {**plain, **({} if self.fine is None else self.fine.figures)}

    @property
    def headline(self) -> npt.NDArray[Any]:
        """[C] the task's headline metric."""
        return self.metrics[self.task.metric]

    @property
    def over_rows(self) -> dict[str, float]:
        """Every metric over all clients' samples as one set."""
        whole = {name: s.sum(0, keepdims=True) / max(1, self.count.sum()) for name, s in self.sums.items()}
        plain = {name: float(value[0]) for name, value in self.task.metrics(whole).items()}
        return {**plain, **({} if self.fine is None else self.fine.over_rows)}

    def among(self, clients: Sequence[int]) -> Scores:
        """The same among these clients, in their order: those of them that have no test get one of no rows."""
        if len(self.clients) == len(clients):
            return self
        everyone = np.asarray(clients)
        order = np.argsort(everyone)
        places = order[np.searchsorted(everyone, self.clients, sorter=order)]

        def spread(column: _Column) -> npt.NDArray[Any]:
            whole = np.full((len(everyone), *column.values.shape[1:]), column.untested, dtype=column.values.dtype)
            whole[places] = column.values
            return whole

        return replace(self._with(map(spread, self._columns)), clients=everyone)

    @classmethod
    def gathered(cls, parts: Iterable[Scores], clients: int) -> Scores:
        """As :meth:`join`, without ever holding all of many blocks beside the whole. Every :data:`TOGETHER` of them are
        added up first, in every engine that tests blocks, so that their sums are the same to the last bit.

        Args:
            parts: in order.
            clients: how many they are of.
        """
        groups = _together(parts)
        first = next(groups)
        if len(first.clients) == clients:
            return first
        rooms, counts = [Room(clients, each.values, each.exact) for each in first._columns], AddedCounts()
        for part in chain([first], groups):
            for room, column in zip(rooms, part._columns, strict=True):
                room.add(column.values)
            if part.fine is not None:
                counts.add(part.fine.counts)
        whole = first._with(room.values() for room in rooms)
        return replace(whole, fine=whole.fine and replace(whole.fine, counts=counts.sums()))

    def narrowed(self) -> Scores:
        """The same as it is kept of so many clients, however it came together."""
        return self._with([each.values if each.exact else narrow(each.values) for each in self._columns])

    def between(self, start: int, end: int) -> Scores:
        """The same of the clients at these places, without finer figures; the arrays are views."""
        plain = replace(self, fine=None)
        return plain._with([each.values[start:end] for each in plain._columns])

    @property
    def _columns(self) -> list[_Column]:
        """All arrays [C, …], in one order."""
        fine = {} if self.fine is None else self.fine.figures
        return [
            *(_Column(self.clients, 0), _Column(self.count, 0), _Column(self.loss, np.nan)),
            *(_Column(values, 0, exact=True) for values in self.sums.values()),
            *(_Column(values, np.nan) for values in fine.values()),
        ]

    def _with(self, columns: Iterable[npt.NDArray[Any]]) -> Scores:
        """The same with these in place of all arrays, in the same order."""
        following = iter(columns)
        clients, count, loss = next(following), next(following), next(following)
        sums = {name: next(following) for name in self.sums}
        fine = self.fine and replace(self.fine, figures={name: next(following) for name in self.fine.figures})
        return Scores(clients, count, loss, sums, self.task, fine)

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        """Results of several blocks, one after the other."""
        return cls(
            np.concatenate([p.clients for p in parts]),
            np.concatenate([p.count for p in parts]),
            np.concatenate([p.loss for p in parts]),
            {name: np.concatenate([p.sums[name] for p in parts]) for name in parts[0].sums},
            parts[0].task,
            FineScores.join([p.fine for p in parts if p.fine is not None]) if parts[0].fine is not None else None,
        )


def _together(parts: Iterable[Scores]) -> Iterator[Scores]:
    """Every :data:`TOGETHER` of them as one; the counts of their rows are added up as they come."""
    blocks = iter(parts)
    while True:
        few, counts = [], AddedCounts()
        for part in islice(blocks, TOGETHER):
            if part.fine is not None:
                counts.add(part.fine.counts)
                part = replace(part, fine=replace(part.fine, counts=()))
            few.append(part)
        if not few:
            return
        group = Scores.join(few)
        yield replace(group, fine=group.fine and replace(group.fine, counts=counts.sums()))


def spread_of(values: npt.NDArray[Any], ranked: npt.NDArray[np.bool_] | None = None) -> dict[str, float | None]:
    """mean, std, p10, p90, min and max over the clients for which a metric is defined; None where it is for none.

    Args:
        values: [C].
        ranked: [C] which clients p10, p90, min and max are over; by default all. Mean and std are always over all.
    """
    known = ~np.isnan(values)
    among = _where(known if ranked is None else known & ranked, values)
    ends: dict[str, Callable[[npt.NDArray[np.float64]], Any]] = {
        "p10": partial(np.quantile, q=0.1), "p90": partial(np.quantile, q=0.9), "min": np.min, "max": np.max,
    }  # fmt: skip
    values = _where(known, values)
    return {
        "mean": mean_of(values),
        "std": _std(values) if len(values) else None,
        **{name: float(of(among)) if len(among) else None for name, of in ends.items()},
    }


def mean_of(values: npt.NDArray[Any]) -> float | None:
    """The mean of :func:`spread_of` alone, which takes a tenth of its time."""
    known = _where(~np.isnan(values), values)
    return float(known.mean(dtype=np.float64)) if len(known) else None


def _std(values: npt.NDArray[Any]) -> float:
    """Of very many piece by piece: all deviations at once take twice their room."""
    if len(values) <= MANY:
        return float(values.std(dtype=np.float64))
    mean = values.mean(dtype=np.float64)
    pieces = (values[start : start + MANY] for start in range(0, len(values), MANY))
    return math.sqrt(sum(float(np.square(piece - mean).sum()) for piece in pieces) / len(values))


def _where(chosen: npt.NDArray[np.bool_], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Those that are chosen: the values themselves, which are not to be changed, if all are."""
    return values if chosen.all() else values[chosen]
