"""What a printed table of accuracies is: rows (methods), columns (partitions), and the settings of both.

A figure whose points are trained models is one as well: without printed values, with comparisons of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from commonground.errors import ConfigError
from commonground.papers.printed_values import printed
from commonground.papers.tables.variants import PAPER, Variant, taken
from commonground.report.format import slug
from commonground.suggest import meant

if TYPE_CHECKING:
    from commonground.engine import Run
    from commonground.papers.figures import Figure
    from commonground.papers.request import Request
    from commonground.papers.tables.cells import CellStore
    from commonground.statistics import Values

__all__ = ["COMMON", "SMALL", "CellRun", "FromColumn", "PaperColumn", "PaperTable", "Row", "RowClaim", "cifar_column"]

# Collins et al. 2021, App. A.2.
COMMON: dict[str, Any] = {
    "participation": 0.1,
    "rounds": 100,
    "batch_size": 10,
    "lr": 0.01,
    "momentum": 0.5,
    "eval_every": 20,
    "eval_last": 10,
}

# What `--scale small` changes: fewer clients and images. Rounds, epochs and the share of clients stay the paper's.
SMALL: dict[str, Any] = {"clients": 40, "train_samples": 200, "test_samples": 100}
SMALL_TEXT = (
    "Scale small: 40 clients of 200 training and 100 test images; rounds, local epochs, batch size, rates and the "
    "share of clients in a round are the paper's. With fewer images of its own a client gains more from the others, "
    "and an average over 4 participants is rougher than one over 10; so values are lower than the paper's, and methods "
    "with a shared model do better beside purely local ones than at the paper's scale."
)


@dataclass(frozen=True)
class FromColumn:
    """A hyperparameter that is equal to a setting of the column, such as its local epochs."""

    setting: str


@dataclass(frozen=True)
class Row:
    """A method of a table.

    Attributes:
        name: as printed (or ours, where the paper prints one value for what we measure in several ways).
        algorithm: ours.
        options: its hyperparameters.
        settings: of its runs, where they differ from the column's.
        reads: the accuracy that is reported: of each client's own model (after fine-tuning for +FT), of the global
            one, or of the models that a round's participants have as their local training ends (``trained``, for which
            the runs need ``metrics: full``). Rows that differ in this alone share their runs.
        printed: the name in the printed table, if another; of rows without printed values, the row that this one is
            another way to measure.
        note: how it differs from what the paper says.
    """

    name: str
    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    reads: Literal["personal", "global", "trained"] = "personal"
    printed: str = ""
    note: str = ""

    @property
    def key(self) -> str:
        """The name as it is easily typed: ``fedavg+ft``."""
        return slug(self.name.replace("+", "-plus-").replace("*", "-star")).replace("-plus-", "+")


@dataclass(frozen=True)
class PaperColumn:
    """One partition of a table.

    Attributes:
        label: as in the paper, for example ``CIFAR-10 (100, 2)``.
        key: (dataset, clients, classes per client) in the printed table, as text.
        data: name of the data set to load.
        settings: of the runs, those of the paper.
        methods: hyperparameters and settings of single algorithms in this column, by algorithm.
        note: where ours differs from the paper's data.
    """

    label: str
    key: tuple[str, str, str]
    data: str
    settings: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class CellRun:
    """What is trained for one cell: a method in a column, as the paper has it or with one thing changed.

    Attributes:
        column, row, variant: of the table.
        options: hyperparameters of the algorithm.
        settings: of the run, but for its seed.
    """

    column: PaperColumn
    row: Row
    variant: Variant
    options: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def same_run(self) -> str:
        """Equal for arms that differ only in what is read from their runs."""
        return json.dumps([self.column.label, self.row.algorithm, self.options, self.settings], sort_keys=True)

    @property
    def title(self) -> str:
        """As progress calls it."""
        changed = f", {self.variant.name}" if self.variant.name else ""
        return f"{self.row.name}, {self.column.label}{changed}"


@dataclass(frozen=True)
class RowClaim:
    """A claim about two rows, where a table's champions do not say it: one above the other, in every column.

    Attributes:
        one, other: names of the rows.
        text: the claim; ``COLUMN`` in it stands for the column's label.
        at: the round (of new clients the epoch) at which their curves are compared; None for what the cells report.
    """

    one: str
    other: str
    text: str
    at: int | None = None


@dataclass(frozen=True)
class PaperTable:
    """A printed table, or a figure of trained models, and how to measure it.

    Attributes:
        name: of its experiment.
        printed: name of the printed table; empty for a figure, which prints no numbers.
        source: paper and number of the table.
        rows: its methods.
        columns: its partitions.
        champions: rows whose lead over every other row is claimed.
        small: how many of the first columns ``--scale small`` measures.
        seeds: the paper's number of repetitions.
        notes: what holds for every cell.
        comparisons: what is claimed beside the champions' leads.
        served: where a cell is about clients that come after training: from a finished run, its seed and what was asked
            for, their accuracies [clients] after every epoch of tuning: the last is the cell, all are its curve.
        needs: what ``served`` needs of data for a seed, looked up before a model is trained for it.
        drawn: figures of the whole table, by title, from its cells.
        named_by: settings that the rows' names state, so that these are chosen among and not set.
        own_bodies: whether the champions' leads are judged a second time, of clients as they end a round: where a paper
            leaves open which body is tested, and it decides the order. The runs need ``metrics: full``.
        reduced, reduced_text: what ``--scale small`` changes of every column, and how it is told.
    """

    name: str
    printed: str
    source: str
    rows: Sequence[Row]
    columns: Sequence[PaperColumn]
    champions: Sequence[str]
    small: int = 2
    seeds: int = 5
    notes: Sequence[str] = ()
    comparisons: Sequence[RowClaim] = ()
    served: Callable[[Run, int, Request], Sequence[Values]] | None = None
    drawn: Callable[[PaperTable, CellStore], Mapping[str, Figure]] | None = None
    needs: Callable[[int, Request], object] | None = None
    named_by: Sequence[str] = ()
    own_bodies: bool = False
    reduced: Mapping[str, Any] = field(default_factory=lambda: SMALL)
    reduced_text: str = SMALL_TEXT

    @cached_property
    def values(self) -> dict[tuple[str, str, str, str], float]:
        """The printed accuracies in percent, by (method, dataset, clients, classes per client)."""
        if not self.printed:
            return {}
        return {
            (r["method"], r["dataset"], r["clients"], r["classes_per_client"]): float(r["accuracy_percent"])
            for r in printed(self.printed)
        }

    def paper(self, row: Row, column: PaperColumn) -> float | None:
        """What the paper prints for a cell."""
        return self.values.get((row.printed or row.name, *column.key))

    def at_scale(self, scale: str) -> PaperTable:
        """The table as a scale measures it."""
        if scale == "paper":
            return self
        columns = [replace(c, settings={**c.settings, **self.reduced}) for c in self.columns[: self.small]]
        return replace(self, columns=columns, seeds=3, notes=[self.reduced_text, *self.notes])

    def choose_columns(self, asked: Sequence[str]) -> list[PaperColumn]:
        """The columns asked for by label (any spelling), all if none is.

        Raises:
            ConfigError: there is no such column.
        """
        known = {slug(column.label): column for column in self.columns}
        return [
            known[_known(slug(text), text, known, "column", [c.label for c in self.columns])] for text in asked
        ] or [*self.columns]

    def choose_rows(self, asked: Sequence[str]) -> list[Row]:
        """The rows asked for by printed name, the same as it is easily typed, or algorithm; all if none is.

        An algorithm that is no row's name stands for all its rows, but for those that measure another row's printed
        value in another way.

        Raises:
            ConfigError: there is no such row.
        """
        known: dict[str, list[Row]] = {}
        for row in self.rows:
            known.setdefault(row.key, []).append(row)
            known.setdefault(row.name.lower(), [row])
        for row in self.rows:
            known.setdefault(row.algorithm, [r for r in self.rows if r.algorithm == row.algorithm and not r.printed])
        found: dict[str, Row] = {}
        for text in asked:
            key = _known(text.strip().lower(), text, known, "method", [row.key for row in self.rows])
            found.update({row.name: row for row in known[key]})
        return list(found.values()) or [*self.rows]

    def arm(self, column: PaperColumn, row: Row, variant: Variant = PAPER, **overrides: Any) -> CellRun:
        """How a cell is trained.

        Args:
            column, row: of the table.
            variant: what is changed.
            overrides: settings of all runs that the user changes.
        """
        from commonground.algorithms import registry

        known = registry[row.algorithm].options()
        settings: dict[str, Any] = {**column.settings, **row.settings}
        options = {
            key: column.settings[value.setting] if isinstance(value, FromColumn) else value
            for key, value in row.options.items()
        }
        asked = {**settings, **overrides}
        for changes in (
            column.methods.get(row.algorithm, {}),
            variant.changes(row.algorithm, asked),
            taken(row.algorithm, asked, overrides),
        ):
            for key, value in changes.items():
                (options if key in known else settings)[key] = value
        return CellRun(column, row, variant, options, settings)


def _known(key: str, text: str, known: Mapping[str, Any], what: str, names: Sequence[str]) -> str:
    if key not in known:
        raise ConfigError(f"the table has no {what} '{text}'{meant(key, known)}; it has {', '.join(names)}")
    return key


def cifar_column(
    classes: int, clients: int, classes_per_client: int, *, epochs: int, methods: Mapping[str, Any] | None = None
) -> PaperColumn:
    """CIFAR-10 or CIFAR-100 over clients of a few classes each, with the papers' settings."""
    data = f"cifar{classes}"
    settings = {**COMMON, "clients": clients, "classes_per_client": classes_per_client, "local_epochs": epochs}
    label = f"CIFAR-{classes} ({clients}, {classes_per_client})"
    return PaperColumn(label, (data, str(clients), str(classes_per_client)), data, settings, methods or {})
