"""Figures of one run's page."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from commonground.quoting import escaped
from commonground.report.charts import CellChart, Chart, Line, LineChart, spread_places, through
from commonground.report.format import unit_of
from commonground.report.metrics import extra_metrics
from commonground.report.read import RunFiles
from commonground.spreadsheet import without_apostrophe

__all__ = [
    "MOST_CLIENTS",
    "client_chart",
    "file_name",
    "from_worst",
    "learning_charts",
    "metric_charts",
    "split_chart",
    "splits",
]

MOST_CLIENTS = 200  # in a picture or a table; the files hold all


def file_name(key: str) -> str:
    """A column's name as that of a file."""
    return key.replace("_", "-").replace("/", "-")


def learning_charts(run: RunFiles, only_global: bool) -> Iterable[Chart]:
    """The metric by round and by bytes sent, and the training loss, as far as they are known.

    Args:
        run: its files.
        only_global: whether clients have no models of their own.
    """
    headline, unit = run.headline, unit_of(run.headline)
    keys = [headline.shared] if only_global else [headline.personal, headline.shared]
    names = {headline.personal: "each client's own model", headline.shared: "the one global model"}
    if run.config.get("finetune_epochs"):
        keys = [headline.shared]
    validation = f"validation_{headline.key}"
    keys, names = [*keys, validation], names | {validation: "the same, on validation rows"}
    last = "the test after the last round is in the table of results"
    tested = "" if run.panel is None else f" Tested on a fixed panel of {run.panel:,} clients; {last}."
    lines = [Line(names[key], *run.curve(key), color=i) for i, key in enumerate(keys) if run.curve(key)[0]]
    if lines:
        yield LineChart(
            name=file_name(headline.key),
            title=headline.title,
            reads=f"Mean {headline.name} over clients on their own test samples after each round; {headline.better} is "
            f"better.{tested}",
            sources=("rounds.jsonl",),
            lines=tuple(lines),
            x_label="round",
            y_label=headline.name,
            y_unit=unit,
        )
    lines = [
        Line(names[key], *run.against_bytes(key), color=i) for i, key in enumerate(keys) if run.against_bytes(key)[0]
    ]
    if lines and lines[0].x[-1] > 0:
        yield LineChart(
            name=f"{file_name(headline.key)}-bytes",
            title=f"{headline.title} against bytes",
            reads=f"The same {headline.name} over what all clients together had sent by then; a curve further left "
            "learns with less traffic.",
            sources=("rounds.jsonl",),
            lines=tuple(lines),
            x_label="sent by clients",
            y_label=headline.name,
            x_unit="bytes",
            y_unit=unit,
        )
    x, y = run.curve("train_loss")
    if x:
        yield LineChart(
            name="loss",
            title="Training loss",
            reads="Mean loss of the participating clients over their local training in each round; it should fall and "
            "level off.",
            sources=("rounds.jsonl",),
            lines=(Line("training loss", x, y),),
            x_label="round",
            y_label="loss",
            y_unit="number",
        )


def metric_charts(run: RunFiles) -> Iterable[Chart]:
    """Each further metric by round."""
    for metric in extra_metrics(run.rounds, run.headline):
        yield LineChart(
            name=file_name(metric.key),
            title=metric.title,
            reads=metric.reads,
            sources=("rounds.jsonl",),
            lines=(Line(metric.axis, *run.curve(metric.key)),),
            x_label="round",
            y_label=metric.axis,
            y_unit=metric.unit,
        )


def client_chart(run: RunFiles) -> Chart:
    """Every client's own figure, from the worst to the best."""
    headline = run.headline
    ranked = from_worst(run)
    places = spread_places(len(ranked))
    shown = [run.clients[ranked[place]] for place in places]
    values = [float(row[headline.personal]) for row in shown]
    few = len(ranked) <= MOST_CLIENTS
    names = tuple(
        f"client {without_apostrophe(row.get('name') or '')}, {row.get('test_samples', '?')} test samples"
        for row in shown
    )
    mark = "Each mark is a client" if few else f"The curve runs through {through(len(places), len(ranked))}"
    return LineChart(
        name="clients",
        title=f"{headline.title} of every client",
        reads=f"{mark}, from the worst on the left to the best on the right; a flat line near the "
        f"{'top' if headline.higher_is_better else 'bottom'} means that everyone is served well.",
        sources=("clients.csv",),
        lines=(Line(f"personal {headline.name}", [place + 1 for place in places], values),),
        x_label=f"clients in order of {headline.name}",
        y_label=headline.name,
        y_unit=unit_of(headline),
        dots=few,
        nearest=True,
        names=names,
    )


def splits(run: RunFiles) -> bool:
    """Whether there is a picture of who holds what."""
    return run.split is not None and run.headline.divides and not run.split.get("described")


def split_chart(run: RunFiles) -> Chart:
    """The class-by-client picture of a split; beyond MOST_CLIENTS an even choice of clients."""
    assert run.split is not None
    headline = run.headline
    counts, classes = run.split["train"], [escaped(str(name)) for name in run.split["class_names"]]
    known = run.split.get("client_names")
    names = [escaped(str(name)) for name in known] if known else [str(i) for i in range(len(counts))]
    shown = list(range(len(counts)))
    more = ""
    if len(counts) > MOST_CLIENTS:
        shown = [round(i * (len(counts) - 1) / (MOST_CLIENTS - 1)) for i in range(MOST_CLIENTS)]
        more = f" Shown are {MOST_CLIENTS} of {len(counts):,} clients, evenly chosen."
    return CellChart(
        name="split",
        title=f"Who holds which {headline.counted}",
        reads=f"Training samples of each {headline.counted_one} (a row) at each client (a column); the darker a cell, "
        f"the more samples, an empty one has none.{more}",
        sources=("split.json",),
        cells=tuple(tuple(counts[i][c] for i in shown) for c in range(len(classes))),
        row_names=tuple(classes),
        column_names=tuple(names[i] for i in shown),
        x_label="client",
        y_label=headline.counted_one,
    )


def from_worst(run: RunFiles) -> list[int]:
    """Places of the clients whose figure is known, from the worst."""
    values = run.clients.numbers(run.headline.personal)
    known = np.flatnonzero(np.isfinite(values))
    order = np.argsort(values[known] if run.headline.higher_is_better else -values[known], kind="stable")
    places: list[int] = known[order].tolist()
    return places
