"""FedRep's Figure 5: more local epochs hurt FedAvg or leave it flat; more head epochs never hurt FedRep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from commonground.papers.experiment import Experiment
from commonground.papers.figures import Curve, Figure
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.judge import run_table
from commonground.papers.tables.readings import reported
from commonground.papers.tables.table import PaperTable, Row, RowClaim, cifar_column
from commonground.statistics import student_interval

__all__ = ["TABLE"]

SOURCE = "Collins et al. 2021, Figure 5"
EPOCHS = (1, 2, 5, 10, 20)
TITLE = "accuracy by local epochs"
# App. A.2: the batches and the rate of McMahan et al. (2017), for this figure alone. The participants' own models are
# tested as well, as they end a round.
SETTINGS = {"batch_size": 50, "lr": 0.1, "metrics": "full"}
OWN = "its participants' models as their local training ends"


def _name(method: str, E: int) -> str:
    return f"{method}, {E} {'head' if method == 'FedRep' else 'local'} epoch{'s' if E > 1 else ''}"


def _own(E: int) -> str:
    return f"{_name('FedAvg', E)}, own models"


def _rows() -> Iterator[Row]:
    for E in EPOCHS:
        yield Row(_name("FedRep", E), "fedrep", options={"head_epochs": E})
    for E in EPOCHS:
        local: Mapping[str, Any] = {"local_epochs": E}
        yield Row(_name("FedAvg", E), "fedavg", settings=local, reads="global")
        # The paper does not say whose errors its "local test errors" of FedAvg are.
        yield Row(_own(E), "fedavg", settings=local, reads="trained", printed=_name("FedAvg", E))


def _comparisons() -> Iterator[RowClaim]:
    """FedRep with more epochs of the head above the same with fewer; FedAvg with one local epoch above more."""
    for fewer, more in pairwise(EPOCHS):
        text = f"FedRep with {more} head epochs is not below FedRep with {fewer}"
        yield RowClaim(_name("FedRep", more), _name("FedRep", fewer), text)
    least, *others = EPOCHS
    most = others[-1]
    yield RowClaim(
        _name("FedRep", most), _name("FedRep", least), f"FedRep with {most} head epochs above FedRep with {least}"
    )
    texts = {more: f"does not gain from {more} local epochs over {least} (positive: {least} better)" for more in others}
    for more, text in texts.items():
        yield RowClaim(_name("FedAvg", least), _name("FedAvg", more), f"FedAvg {text}")
    for more, text in texts.items():
        yield RowClaim(_own(least), _own(more), f"FedAvg, {OWN}, {text}")


def _drawn(table: PaperTable, store: CellStore) -> dict[str, Figure]:
    """The figure: accuracy over E, a line per method; a band where every point has two seeds or more."""
    (column,) = table.columns
    named = {row.name: row for row in table.rows}
    ways = {
        "FedRep (head epochs)": lambda E: _name("FedRep", E),
        "FedAvg": lambda E: _name("FedAvg", E),
        "FedAvg, own models": _own,
    }
    lines = {}
    for title, name in ways.items():
        found = {E: list(reported(store, column, named[name(E)]).values()) for E in EPOCHS}
        points = {E: student_interval(values) for E, values in found.items() if values}
        if points:
            middle, low, high = ([float(point[i]) for point in points.values()] for i in range(3))
            several = all(len(found[E]) > 1 for E in points)
            lines[title] = Curve(list(points), middle, low if several else None, high if several else None)
    return {TITLE: Figure("local epochs E (FedRep: of the head)", "accuracy", lines, percent=True)} if lines else {}


COLUMN = cifar_column(10, 100, 2, epochs=1)
TABLE = PaperTable(
    name="fedrep-fig5",
    printed="",
    source=SOURCE,
    rows=tuple(_rows()),
    columns=(replace(COLUMN, settings={**COLUMN.settings, **SETTINGS}),),
    champions=(),
    comparisons=tuple(_comparisons()),
    drawn=_drawn,
    named_by=("local_epochs", "head_epochs"),
    notes=(
        "A cell is the mean accuracy over clients, averaged over the last 10 rounds: of each client's own model for "
        "FedRep, of the global model for FedAvg, and, as 'own models', of the round's participants' models as their "
        "local training ends, on their own test samples. Which of FedAvg's two the figure has, the paper does not say.",
        '"not below" and "does not gain" hold if the interval of the difference lies above 0, are open if it includes '
        "0, and fail if it lies below.",
    ),
)

Experiment(
    "fedrep-fig5",
    "accuracy against local epochs, FedAvg and FedRep",
    SOURCE,
    lambda request: run_table(TABLE, request),
    table=TABLE,
)
