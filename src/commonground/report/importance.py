"""Which columns of a table the clients' models look at, in a run's page."""

from __future__ import annotations

from collections import Counter

import numpy as np

from commonground.access import reason
from commonground.engine.importance import Importance
from commonground.engine.state.folder import IMPORTANCE
from commonground.errors import RunError
from commonground.quoting import escaped
from commonground.report.charts import Interval, IntervalChart
from commonground.report.format import unit_of_change
from commonground.report.page import Cell, Page, table
from commonground.report.read import RunFiles
from commonground.table import Column
from commonground.tasks import Headline

__all__ = ["add_importance"]

MOST_BARS, MOST_COLUMNS, MOST_ACROSS = 15, 100, 8


def add_importance(page: Page, run: RunFiles) -> None:
    """Add a section on the importance of columns, if the run has left it.

    Raises:
        RunError: the file is damaged.
    """
    path = run.folder / IMPORTANCE
    if not path.is_file():
        return
    try:
        found = Importance.from_json(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"'{path}' cannot be read: {reason(error, path)}") from None
    if not found.columns or not found.clients or found.metric != run.headline.key:
        return
    page.section("Columns", f"What the clients' own models look at. {_how(found, run.headline)}")
    page.figures([_chart(found, run.headline)])
    page.add(_over_clients(found, run.headline))
    body = _by_client(found, run.headline)
    page.add(f"<details><summary>By client, {len(found.clients):,} of {found.of_clients:,}</summary>{body}</details>")


def _how(found: Importance, headline: Headline) -> str:
    drawn = f"{len(found.clients):,} of {found.of_clients:,} clients drawn at random"
    some = "all clients" if len(found.clients) == found.of_clients else drawn
    low, high = min(found.rows), max(found.rows)
    rows = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    times = "once" if max(found.shuffles) == 1 else f"up to {max(found.shuffles)} times, where rows are few"
    worse = "loses" if headline.higher_is_better else "gains"
    return (
        f"A column's importance is how much {headline.name} a client's own model {worse} once the column's cells are "
        f"shuffled among the client's own test rows: measured at {some}, on {rows} test rows "
        f"each, shuffled {times}. Columns that tell the same stand in for each other, so that each counts little."
    )


def _values(found: Importance, place: int) -> list[float]:
    return [value for own in found.importance if (value := own[place]) is not None]


def _chart(found: Importance, headline: Headline) -> IntervalChart:
    intervals = []
    for place in found.order[:MOST_BARS]:
        values = _values(found, place)
        if values:
            low, high = np.quantile(values, [0.1, 0.9]).tolist()
            name = escaped(found.columns[place], 60)
            intervals.append(Interval(name, float(np.mean(values)), low, high))
    more = f" The {MOST_BARS} most important columns are shown." if len(found.columns) > MOST_BARS else ""
    return IntervalChart(
        name="importance",
        title="Importance of columns",
        reads="Marks are means over clients, bars reach from the 10th to the 90th percentile of clients; further right "
        f"matters more, and at zero the models do without the column.{more}",
        sources=(IMPORTANCE,),
        intervals=tuple(intervals),
        x_label=f"{headline.name} {'lost' if headline.higher_is_better else 'added'}"
        f"{', points' if headline.percent else ''}",
        unit=unit_of_change(headline),
        zero=True,
    )


def _over_clients(found: Importance, headline: Headline) -> str:
    unit = unit_of_change(headline)
    first = Counter(_most(own) for own in found.importance)
    columns = [
        Column("Column"),
        Column(f"Importance{', points' if headline.percent else ''}", True),
        Column("10th percentile", True),
        Column("90th percentile", True),
        Column("Rise of the loss", True),
        Column("First at clients", True),
    ]
    rows = []
    for place in found.order[:MOST_COLUMNS]:
        values, (mean, loss) = _values(found, place), found.means[place]
        low, high = np.quantile(values, [0.1, 0.9]).tolist() if values else (None, None)
        cells = [Cell.of(value, unit) for value in (mean, low, high)]
        rows.append(
            [Cell(escaped(found.columns[place])), *cells, Cell.of(loss, "change"), Cell.of(first[place], "integer")]
        )
    return table("Importance of columns over clients", columns, rows, [IMPORTANCE])


def _most(own: tuple[float | None, ...]) -> int | None:
    """The column of most importance to a client; None where none matters."""
    known = [(value, -place) for place, value in enumerate(own) if value is not None and value > 0]
    return -max(known)[1] if known else None


def _by_client(found: Importance, headline: Headline) -> str:
    unit, shown = unit_of_change(headline), found.order[:MOST_ACROSS]
    names = [escaped(found.columns[place], 40) for place in shown]
    columns = [Column("Client"), Column("Test rows", True), *(Column(name, True) for name in names)]
    rows = []
    for index, (client, count) in enumerate(zip(found.clients, found.rows, strict=True)):
        values = [Cell.of(found.importance[index][place], unit, f"importance[{index}][{place}]") for place in shown]
        rows.append([Cell(escaped(client)), Cell.of(count, "integer", f"rows[{index}]"), *values])
    return table("Importance of columns by client", columns, rows, [IMPORTANCE])
