"""Where personal models help most and least: each client's own model against another one, on the same test samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commonground.report.charts import Chart, Line, LineChart, spread_places, through
from commonground.report.format import unit_of, unit_of_change
from commonground.report.page import Cell, table
from commonground.report.read import RunFiles, as_number
from commonground.spreadsheet import without_apostrophe
from commonground.table import Column
from commonground.tasks import Headline

__all__ = ["Gain", "Gains", "between_runs", "gain_chart", "gain_table", "within_run"]

MOST_DOTS, ENDS = 200, 10


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
        clients: theirs.
        own, other: what is compared, for people.
        headline: the metric.
        sources: files the figures are from.
    """

    clients: Sequence[Gain]
    own: str
    other: str
    headline: Headline
    sources: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """How many clients are better off."""
        better, worse = (sum(sign * gain.better > 0 for gain in self.clients) for sign in (1, -1))
        same = len(self.clients) - better - worse
        equal = f" and equally good at {same:,}" if same else ""
        return (
            f"{self.own[:1].upper()}{self.own[1:]} is better than {self.other} at {better:,} of {len(self.clients):,} "
            f"clients, worse at {worse:,}{equal}."
        )


def within_run(run: RunFiles) -> Gains | None:
    """Each client's own model against the run's global one; None where there is no global model or no other."""
    headline = run.headline
    found = []
    for row in run.clients:
        own, other = as_number(row[headline.personal]), as_number(row.get(headline.shared))
        if own is not None and other is not None:
            found.append(_gain(headline, _name(row), row, own, other))
    if not found or all(gain.own == gain.other for gain in found):
        return None
    return Gains(_sorted(found), "the client's own model", "the global one", headline, ("clients.csv",))


def between_runs(
    headline: Headline, pairs: Sequence[tuple[RunFiles, RunFiles]], titles: tuple[str, str], source: str
) -> Gains | None:
    """Clients of one method against the same clients of another, means over seeds where they are the same for all.

    Args:
        headline: the metric.
        pairs: for each seed the run of either method.
        titles: of the methods.
        source: the files, for people.
    """
    key = headline.personal
    found: dict[str, list[tuple[Mapping[str, str], float, float]]] = {}
    names = [[_name(row) for row in own.clients] for own, _ in pairs]
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
        means = [sum(figures) / len(figures) for figures in zip(*((m, v) for _, m, v in each), strict=True)]
        gains.append(_gain(headline, name, each[0][0], means[0], means[1]))
    return Gains(_sorted(gains), *titles, headline, (source,)) if gains else None


def _name(row: Mapping[str, str]) -> str:
    return without_apostrophe(row.get("name") or row.get("client") or "")


def _gain(headline: Headline, name: str, row: Mapping[str, str], own: float, other: float) -> Gain:
    better = own - other if headline.higher_is_better else other - own
    return Gain(name, as_number(row.get("train_samples")), as_number(row.get("test_samples")), own, other, better)


def _sorted(gains: Sequence[Gain]) -> list[Gain]:
    return sorted(gains, key=lambda gain: (-gain.better, -(gain.test or 0), gain.client))


def gain_chart(gains: Gains, name: str = "gains") -> Chart:
    """What every client gains, in order."""
    headline, places = gains.headline, spread_places(len(gains.clients))
    shown = [gains.clients[place] for place in places]
    values = [gain.better for gain in shown]
    few = len(gains.clients) <= MOST_DOTS
    mark = "Each mark is a client" if few else f"The curve runs through {through(len(places), len(gains.clients))}"
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
    shown = list(gains.clients)
    if len(shown) > 2 * ENDS:
        shown = [*shown[:ENDS], *shown[-ENDS:]]
    rows = [
        [
            Cell(gain.client),
            Cell.of(gain.better, unit_of_change(headline)),
            Cell.of(gain.own, unit),
            Cell.of(gain.other, unit),
            Cell.of(gain.train, "integer"),
            Cell.of(gain.test, "integer"),
        ]
        for gain in shown
    ]
    return table("Clients that gain most and least", columns, rows, gains.sources)
