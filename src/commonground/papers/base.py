"""What an experiment is, and how claims are judged and written."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from commonground.engine.folder import write_atomically

__all__ = [
    "Cell",
    "Claim",
    "Experiment",
    "Outcome",
    "Scale",
    "difference",
    "experiments",
    "interval",
    "printed",
    "write_outcome",
]

Scale = Literal["small", "paper"]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Claim:
    """A statement of a paper with what was measured for it.

    Attributes:
        claim: the statement, in words.
        source: where the paper makes it.
        paper: the paper's value for it (a difference in percentage points, where it compares), or None.
        measured: ours.
        low, high: 95 % interval of ``measured``.
        seeds: number of seeds behind it.
        holds: True if the interval lies on the claimed side, False if on the other, None if it holds neither way.
    """

    claim: str
    source: str
    paper: float | None
    measured: float
    low: float
    high: float
    seeds: int
    holds: bool | None


@dataclass(frozen=True)
class Cell:
    """One number of a table: the paper's beside ours, in percent."""

    column: str
    method: str
    paper: float | None
    measured: float
    low: float
    high: float
    seeds: int


@dataclass
class Outcome:
    """What an experiment found.

    Attributes:
        claims: judged statements.
        cells: the table.
        curves: figures: name to {"x": label, "y": label, "lines": {name: {"x": [...], "mean": [...], "low": [...],
            "high": [...]}}}.
        notes: what was reduced, left out or differs, in sentences.
    """

    claims: list[Claim] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    curves: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper.

    Attributes:
        name: the name in the command line.
        title: one line.
        source: the paper and its table or figure.
        run: carries it out: (scale, first seed, folder, data folder, quiet) to what it found.
    """

    name: str
    title: str
    source: str
    run: Callable[[Scale, int, Path, str | None, bool], Outcome]

    def __post_init__(self) -> None:
        experiments[self.name] = self


experiments: dict[str, Experiment] = {}
"""Every experiment by name; it enters by being created."""


def printed(name: str) -> list[dict[str, str]]:
    """Rows of a table as printed in a paper (see ``printed/SOURCES.md``)."""
    text = resources.files("commonground.papers").joinpath("printed", f"{name}.csv").read_text("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def interval(means: Sequence[float], clients: Sequence[Values]) -> tuple[float, float, float]:
    """A mean accuracy with its 95 % interval.

    With two seeds or more the interval is Student's over the seeds; with one it is the normal interval over clients.

    Args:
        means: one mean per seed.
        clients: per seed, the clients' accuracies.

    Returns:
        (mean, low, high).
    """
    mean = statistics.mean(means)
    if len(means) > 1:
        half = float(stats.t.ppf(0.975, len(means) - 1)) * statistics.stdev(means) / math.sqrt(len(means))
    else:
        values = clients[0]
        half = 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def difference(
    claim: str,
    source: str,
    paper: float | None,
    one: tuple[Sequence[float], Sequence[Values]],
    other: tuple[Sequence[float], Sequence[Values]],
) -> Claim:
    """Judge "one above other" by the paired difference of two methods, in percentage points.

    Args:
        claim, source, paper: see :class:`Claim`.
        one, other: per seed the mean accuracy, and per seed the clients' accuracies, paired by client.
    """
    means = [100 * (a - b) for a, b in zip(one[0], other[0], strict=True)]
    clients = [100 * (a - b) for a, b in zip(one[1], other[1], strict=True)]
    mean, low, high = interval(means, clients)
    holds = True if low > 0 else False if high < 0 else None
    return Claim(claim, source, paper, mean, low, high, len(means), holds)


def write_outcome(outcome: Outcome, experiment: Experiment, about: Mapping[str, Any], folder: Path) -> None:
    """Write ``results.json`` (the claims), ``cells.csv``, ``curves.json`` and ``reproduction.json`` (everything)."""
    claims = [asdict(claim) for claim in outcome.claims]
    write_atomically(folder / "results.json", json.dumps(claims, indent=2) + "\n")
    everything = {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        **about,
        "notes": outcome.notes,
        "claims": claims,
        "cells": [asdict(cell) for cell in outcome.cells],
        "curves": outcome.curves,
    }
    write_atomically(folder / "reproduction.json", json.dumps(everything, indent=2) + "\n")
    write_atomically(folder / "cells.json", json.dumps(everything["cells"], indent=2) + "\n")
    for name, rows in (("cells", everything["cells"]), ("claims", claims)):
        if rows:
            text = io.StringIO()
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_atomically(folder / f"{name}.csv", text.getvalue())
