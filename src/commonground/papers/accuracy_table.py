"""Tables of accuracies by method and partition: the shape that FedRep's and FLUTE's Table 1 share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commonground.engine.run import Run
from commonground.errors import DataError
from commonground.papers.claims import difference
from commonground.papers.experiment import Request, printed
from commonground.papers.outcome import Cell, Outcome
from commonground.papers.sweep import compare_methods
from commonground.report.format import slug
from commonground.statistics import Values, accuracy_interval

__all__ = ["COMMON", "SMALL", "PaperColumn", "PaperTable", "accuracies", "cifar_column", "reduced", "run_table"]


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

# What `--scale small` makes of a CIFAR column: a minute a method on two cores.
SMALL: dict[str, Any] = {
    "clients": 20,
    "participation": 0.25,
    "rounds": 30,
    "local_epochs": 5,
    "train_samples": 100,
    "test_samples": 100,
}


@dataclass(frozen=True)
class PaperColumn:
    """One partition of a table.

    Attributes:
        label: as in the paper, for example ``CIFAR-10 (100, 2)``.
        key: (dataset, clients, classes per client) in the printed table, as text.
        data: name of the data set to load.
        settings: of the runs, those of the paper.
        note: where ours differs from the paper's data.
    """

    label: str
    key: tuple[str, str, str]
    data: str
    settings: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A printed table and how to measure it.

    Attributes:
        printed: name of the printed table.
        source: paper and number of the table.
        methods: printed name to ours (``fedavg+ft`` for a +FT form); settings of the column fill ``{…}``.
        columns: its partitions.
        champions: printed names whose lead over every other method is claimed.
    """

    printed: str
    source: str
    methods: Mapping[str, str]
    columns: Sequence[PaperColumn]
    champions: Sequence[str]


def cifar_column(classes: int, clients: int, classes_per_client: int, *, epochs: int) -> PaperColumn:
    """CIFAR-10 or CIFAR-100 over clients of a few classes each, with the papers' settings."""
    data = f"cifar{classes}"
    settings = {**COMMON, "clients": clients, "classes_per_client": classes_per_client, "local_epochs": epochs}
    label = f"CIFAR-{classes} ({clients}, {classes_per_client})"
    return PaperColumn(label, (data, str(clients), str(classes_per_client)), data, settings)


def accuracies(runs: Sequence[Run], which: str) -> tuple[list[float], list[Values]]:
    """Per seed the figure the papers report, and the clients' final accuracies.

    Args:
        runs: one per seed.
        which: ``personal`` (mean over clients, averaged over the last 10 rounds; after fine-tuning for +FT) or
            ``global`` (the global model, likewise).
    """
    means = [
        run.summary["personal_accuracy"]["last10"] if which == "personal" else run.summary["global_accuracy_last10"]
        for run in runs
    ]
    return means, [np.array([client[f"{which}_accuracy"] for client in run.clients]) for run in runs]


def run_table(
    table: PaperTable,
    columns: Sequence[PaperColumn],
    request: Request,
    *,
    seeds: int,
) -> Outcome:
    """Measure a table column by column and judge each claim.

    Args:
        table: the printed table.
        columns: the partitions to measure, with the settings to use.
        request: what was asked for; a comparison folder per column is written into its folder.
        seeds: number of seeds, unless the request says another.
    """
    values = {
        (r["method"], r["dataset"], r["clients"], r["classes_per_client"]): float(r["accuracy_percent"])
        for r in printed(table.printed)
    }
    outcome = Outcome()
    # A global method is trained once: its +FT form is the same run with the heads tuned at the end.
    for column in (reduced(column, **request.overrides) for column in columns):
        methods = {name: method.format(**column.settings) for name, method in table.methods.items()}
        wanted = set(methods.values())
        trained = [m for m in dict.fromkeys(methods.values()) if f"{m}+ft" not in wanted]
        try:
            runs = compare_methods(trained, column.data, seeds, request, slug(column.label), column.settings)
        except DataError as error:
            outcome.notes.append(f"{column.label} was left out: {error}")
            continue
        if column.note:
            outcome.notes.append(f"{column.label}: {column.note}")
        measured = {}
        for name, method in methods.items():
            tuned = f"{method}+ft" in wanted
            own = runs[f"{method}+ft" if tuned else method]
            measured[name] = accuracies(own, "global" if tuned else "personal")
            mean, low, high = (100 * v for v in accuracy_interval(*measured[name]))
            outcome.cells.append(Cell(column.label, name, values.get((name, *column.key)), mean, low, high, len(own)))
        for champion in table.champions:
            for name in table.methods:
                if name in table.champions[: table.champions.index(champion) + 1]:
                    continue
                theirs = [values.get((m, *column.key)) for m in (champion, name)]
                paper = None if None in theirs else round(theirs[0] - theirs[1], 3)  # type: ignore[operator]
                text = f"{champion} above {name} on {column.label}"
                if paper is not None and paper < 0:
                    text += " (in the paper below)"
                outcome.claims.append(difference(text, table.source, paper, measured[champion], measured[name]))
    return outcome


def reduced(column: PaperColumn, **settings: Any) -> PaperColumn:
    """A column with other settings."""
    return dataclasses.replace(column, settings={**column.settings, **settings})
