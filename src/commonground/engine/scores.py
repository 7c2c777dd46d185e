"""What a test says of several clients, and what is told of a figure over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.engine.fine_scores import AddedCounts, FineScores
from commonground.engine.narrow import narrow, narrow_kind
from commonground.tasks import Task
from commonground.tasks.base import Figures

__all__ = ["Scores", "spread_of"]

TOGETHER = 64  # blocks whose figures are added up before those of others


@dataclass(frozen=True)
class Scores:
    """Test results of several clients.

    Attributes:
        clients: [C] their numbers.
        count: [C] test samples; 0 for a client that was not asked, or was and did not answer.
        loss: [C] mean loss; NaN without samples.
        sums: by name, [C, …]: what the task scores, added up over each client's samples.
        task: says which metrics follow.
        fine: further figures, if the test was a detailed one.
    """

    clients: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    loss: npt.NDArray[np.float64]
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
    def headline(self) -> npt.NDArray[np.float64]:
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

        def spread(values: npt.NDArray[Any], untested: float) -> npt.NDArray[Any]:
            whole = np.full((len(everyone), *values.shape[1:]), untested, dtype=values.dtype)
            whole[places] = values
            return whole

        return replace(self._with_each(spread), clients=everyone)

    @classmethod
    def gathered(cls, parts: Iterable[Scores], clients: int) -> Scores:
        """As :meth:`join`, without ever holding all of many blocks beside the whole. Every :data:`TOGETHER` of them are
        added up first, in every engine, so that their sums are the same to the last bit.

        Args:
            parts: in order.
            clients: how many they are of.
        """
        groups = _together(parts)
        first = next(groups)
        if len(first.clients) == clients:
            return first
        whole = first._with_each(lambda v, _: np.empty((clients, *v.shape[1:]), narrow_kind(v.dtype, clients)))
        # Sums keep their digits: a metric may be made of the differences of large ones.
        sums = {name: np.empty((clients, *s.shape[1:]), s.dtype) for name, s in first.sums.items()}
        whole = replace(whole, sums=sums)
        counts, done = AddedCounts(), 0
        for part in chain([first], groups):
            with np.errstate(over="ignore"):  # what is infinite then is refused
                for room, values in zip(whole._columns, part._columns, strict=True):
                    room[done : done + len(values)] = values
            done += len(part.clients)
            if part.fine is not None:
                counts.add(part.fine.counts)
        return replace(whole, fine=whole.fine and replace(whole.fine, counts=counts.sums()))

    def between(self, start: int, end: int) -> Scores:
        """The same of the clients at these places; the arrays are views."""
        return self._with_each(lambda values, _: values[start:end])

    @property
    def _columns(self) -> list[npt.NDArray[Any]]:
        """All arrays [C, …], in one order."""
        fine = [] if self.fine is None else self.fine.figures.values()
        return [self.clients, self.count, self.loss, *self.sums.values(), *fine]

    def _with_each(self, of: Callable[[npt.NDArray[Any], float], npt.NDArray[Any]]) -> Scores:
        """Another array for each one [C, …], made of it and of what stands there for a client without a test."""
        fine = self.fine
        if fine is not None:
            fine = replace(fine, figures={name: of(values, np.nan) for name, values in fine.figures.items()})
        sums = {name: of(values, 0) for name, values in self.sums.items()}
        return Scores(of(self.clients, 0), of(self.count, 0), of(self.loss, np.nan), sums, self.task, fine)

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
    values = _where(known, values)
    ends: dict[str, Callable[[npt.NDArray[np.float64]], Any]] = {
        "p10": partial(np.quantile, q=0.1), "p90": partial(np.quantile, q=0.9), "min": np.min, "max": np.max,
    }  # fmt: skip
    return {
        "mean": float(values.mean(dtype=np.float64)) if len(values) else None,
        "std": float(values.std(dtype=np.float64)) if len(values) else None,
        **{name: float(of(among)) if len(among) else None for name, of in ends.items()},
    }


def _where(chosen: npt.NDArray[np.bool_], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Those that are chosen; without a copy if all are."""
    return values if chosen.all() else values[chosen]
