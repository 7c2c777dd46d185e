"""Where personal models help most and least: each client's own model against another one, on the same test samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from commonground.counted import counted
from commonground.report.charts import Chart, Line, LineChart, spread_places, through
from commonground.report.format import unit_of, unit_of_change
from commonground.report.page import Cell, table
from commonground.report.read import RunFiles, as_number
from commonground.spreadsheet import without_apostrophe
from commonground.statistics import without_dust
from commonground.table import Column
from commonground.tasks import Headline

__all__ = ["Gain", "Gains", "between_runs", "gain_chart", "gain_table", "within_run"]

MOST_DOTS, ENDS = 200, 10

N = TypeVar("N", float, npt.NDArray[np.float64])


@dataclass(frozen=True)
class Gain:
    """One client's.

    Attributes:
        client: its name.
        train, test: numbers of its samples.
        own, other: figures of its own model and of the one that it is compared with.
        better: how much better its own is (below zero: worse).
    """

    client: str
    train: float | None
    test: float | None
    own: float
    other: float
    better: float


@dataclass(frozen=True)
class Gains:
    """All clients', from the one that its own model helps most to the one that it helps least.

    Attributes:
        better: [clients] how much better each one's own is.
        gain: the client at a place of that order; made when it is asked for, for there may be a million of them.
        own, other: what is compared, for people.
        headline: the metric.
        sources: files the figures are from.
    """

    better: npt.NDArray[np.float64]
    gain: Callable[[int], Gain]
    own: str
    other: str
    headline: Headline
    sources: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.better)

    @property
    def sentence(self) -> str:
        """How many clients are better off."""
        better, worse = int((self.better > 0).sum()), int((self.better < 0).sum())
        same = len(self) - better - worse
        equal = f" and equally good at {same:,}" if same else ""
        return (
            f"{self.own[:1].upper()}{self.own[1:]} is better than {self.other} at {better:,} of {len(self):,} "
            f"clients, worse at {worse:,}{equal}."
        )


def within_run(run: RunFiles) -> Gains | None:
    """Each client's own model against the run's global one; None where there is no global model or no other."""
    headline = run.headline
    own, other, tests = (run.clients.numbers(key) for key in (headline.personal, headline.shared, "test_samples"))
    known = np.flatnonzero(np.isfinite(own) & np.isfinite(other))
    if not len(known) or (own[known] == other[known]).all():
        return None
    better = _better(headline, own, other)
    places = known[_order(better[known], tests[known])]

    def gain(place: int) -> Gain:
        row = run.clients[places[place]]
        return _gain(headline, _name(row), row, float(own[places[place]]), float(other[places[place]]))

    return Gains(better[places], gain, "the client's own model", "the global one", headline, ("clients.csv",))


def between_runs(
    headline: Headline,
    pairs: Sequence[tuple[RunFiles, RunFiles]],
    titles: tuple[str, str],
    source: str,
    same_clients: bool | None = None,
) -> Gains | None:
    """Clients of one method against the same clients of another, means over seeds where they are the same for all.

    Args:
        headline: the metric.
        pairs: for each seed the run of either method.
        titles: of the methods.
        source: the files, for people.
        same_clients: whether the clients of all seeds are the same ones; None where an earlier version did not write it
            down: by their names then.
    """
    key = headline.personal
    found: dict[str, list[tuple[Mapping[str, str], float, float]]] = {}
    names = [[_name(row) for row in own.clients] for own, _ in pairs]
    same = same_clients
    if same is None:
        same = all(each == names[0] for each in names) and any(name != str(i) for i, name in enumerate(names[0]))
    for own, other in pairs:
        theirs = {row["client"]: as_number(row.get(key)) for row in other.clients}
        seed = "" if same or len(pairs) == 1 else f", seed {own.summary.get('seed')}"
        for row in own.clients:
            mine, value = as_number(row[key]), theirs.get(row["client"])
            if mine is not None and value is not None:
                found.setdefault(f"{_name(row)}{seed}", []).append((row, mine, value))
    gains = []
    for name, each in found.items():
        # Equal clients have means that differ in their last bits; so they are rounded as they are for the tests.
        figures = list(zip(*((m, v) for _, m, v in each), strict=True))
        size = max(abs(value) for own in figures for value in own)
        means = [v[0] if len(v) == 1 else float(without_dust(sum(v) / len(v), size)) for v in figures]
        gains.append(_gain(headline, name, each[0][0], means[0], means[1]))
    better = np.array([gain.better for gain in gains])
    order = _order(better, np.array([gain.test or 0 for gain in gains]))
    return Gains(better[order], lambda place: gains[order[place]], *titles, headline, (source,)) if gains else None


def _name(row: Mapping[str, str]) -> str:
    return without_apostrophe(row.get("name") or row.get("client") or "")


def _gain(headline: Headline, name: str, row: Mapping[str, str], own: float, other: float) -> Gain:
    train, test = (as_number(row.get(f"{split}_samples")) for split in ("train", "test"))
    return Gain(name, train, test, own, other, _better(headline, own, other))


def _better(headline: Headline, own: N, other: N) -> N:
    """By how much."""
    return own - other if headline.higher_is_better else other - own


def _order(better: npt.NDArray[np.float64], tests: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Places from the largest gain to the least; among equal ones from the most test samples on, then as they come."""
    return np.lexsort((-np.nan_to_num(tests), -better))


def gain_chart(gains: Gains, name: str = "gains") -> Chart:
    """What every client gains, in order."""
    headline, places = gains.headline, spread_places(len(gains))
    shown = [gains.gain(place) for place in places]
    values = [gain.better for gain in shown]
    few = len(gains) <= MOST_DOTS
    mark = "Each mark is a client" if few else f"The curve runs through {through(len(places), len(gains))}"
    names = tuple(f"client {gain.client}, {gain.test or 0:,.0f} test samples" for gain in shown)
    return LineChart(
        name=name,
        title="Where personal models help",
        reads=f"By how much {gains.own} is better than {gains.other} at each client in {headline.name}. {mark}, from "
        "where it helps most on the left to where it helps least on the right; below zero it does harm.",
        sources=gains.sources,
        lines=(Line(f"gain in {headline.name}", [place + 1 for place in places], values),),
        x_label="clients in order of gain",
        y_label="points gained" if headline.percent else f"gain in {headline.name}",
        y_unit=unit_of_change(headline),
        dots=few,
        nearest=True,
        names=names,
    )


def gain_table(gains: Gains) -> str:
    """The clients at both ends, with their sizes."""
    headline, unit = gains.headline, unit_of(gains.headline)
    columns = [
        Column("Client"),
        Column(f"Gain{', points' if headline.percent else ''}", True),
        Column(f"{headline.title}, {gains.own}", True),
        Column(gains.other, True),
        Column("Training samples", True),
        Column("Test samples", True),
    ]
    places: Sequence[int] = range(len(gains))
    between = len(gains) - 2 * ENDS
    if between > 0:
        places = [*places[:ENDS], *places[-ENDS:]]
    rows = [
        [
            Cell(gain.client),
            Cell.of(gain.better, unit_of_change(headline)),
            Cell.of(gain.own, unit),
            Cell.of(gain.other, unit),
            Cell.of(gain.train, "integer"),
            Cell.of(gain.test, "integer"),
        ]
        for gain in map(gains.gain, places)
    ]
    if between > 0:
        left = Cell(f"… {counted(between, 'client')} between these and those below")
        rows.insert(ENDS, [left, *[Cell("")] * (len(columns) - 1)])
    return table("Clients that gain most and least", columns, rows, gains.sources)
