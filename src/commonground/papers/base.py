"""What an experiment is, and how claims are judged and written."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console
from rich.progress import track
from scipy import stats

from commonground.config import one_sentence
from commonground.engine.state.folder import write_atomically
from commonground.errors import ConfigError
from commonground.report.format import slug

__all__ = [
    "Cell",
    "Claim",
    "Curve",
    "Experiment",
    "Figure",
    "Outcome",
    "Request",
    "Scale",
    "Settings",
    "difference",
    "experiments",
    "interval",
    "printed",
    "value_for",
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
        paper: the paper's value for it (a difference in percentage points, where it compares accuracies), its word
            for it, or None.
        measured: ours; the claim's text says what it counts where it is no difference in percentage points.
        low, high: 95 % interval of ``measured``.
        seeds: number of seeds behind it.
        holds: True if the interval lies on the claimed side, False if on the other, None if it holds neither way.
    """

    claim: str
    source: str
    paper: float | str | None
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


@dataclass(frozen=True)
class Curve:
    """One line of a :class:`Figure`: means (or medians) over x with the band around them; equally long, all finite."""

    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, measured.

    Attributes:
        x, y: labels of the axes.
        lines: by their names.
        log_x, log_y: logarithmic axes (all values positive).
        percent: y is a share, written in percent.
        reads: what lines and bands are, in a sentence.
    """

    x: str
    y: str
    lines: Mapping[str, Curve]
    log_x: bool = False
    log_y: bool = False
    percent: bool = False
    reads: str = "Lines are means, bands their 95 % intervals."


@dataclass
class Outcome:
    """What an experiment found.

    Attributes:
        claims: judged statements.
        cells: a paper's table of accuracies, ours beside its own.
        figures: by title.
        tables: other tables by title: a mapping per row, all with the same keys.
        notes: what was reduced, left out or differs, in sentences.
        settings: what it was run with, where the experiment has settings of its own.
    """

    claims: list[Claim] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


class Settings(BaseModel):
    """The numbers an experiment is run with: derive from it, one field each; every one can be set with ``--set``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def value_for(values: Any, key: str, name: str, whose: str) -> Any:
    """A setting's value where it may be one value for all or a table of values.

    Args:
        values: the setting.
        key: which of the table's.
        name: of the setting.
        whose: value it is, for the error.

    Raises:
        ConfigError: the table lacks it.
    """
    if not isinstance(values, Mapping):
        return values
    if key not in values:
        raise ConfigError(f"{name} has no value for {whose}; it has {', '.join(values) or 'none'}")
    return values[key]


S = TypeVar("S", bound=Settings)
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """How an experiment is asked for.

    Attributes:
        folder: for what it leaves behind.
        scale: the paper's own setting, or one that fits two cores.
        seed: the first seed.
        seeds: number of seeds, or None for the experiment's own.
        data_dir: folder of the data files.
        quiet: show no progress.
        overrides: settings to use instead of the experiment's, by name.
    """

    folder: Path
    scale: Scale = "small"
    seed: int = 0
    seeds: int | None = None
    data_dir: str | None = None
    quiet: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def choose(self, small: S, paper: S) -> S:
        """The settings of the scale asked for, with what the user overrides.

        Raises:
            ConfigError: an override is unknown or does not fit.
        """
        chosen = small if self.scale == "small" else paper
        try:
            return type(chosen).model_validate({**chosen.model_dump(), **self.overrides})
        except ValidationError as error:
            raise ConfigError(one_sentence(error, type(chosen).model_fields)) from None

    def seed_range(self, default: int) -> range:
        """The seeds to use."""
        return range(self.seed, self.seed + (self.seeds or default))

    def progress(self, items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
        """Iterate with a progress bar on a terminal's standard error."""
        console = Console(stderr=True)
        if self.quiet or not console.is_terminal:
            return iter(items)
        return iter(track(items, what, total=total, console=console, transient=True))


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper.

    Attributes:
        name: the name in the command line.
        title: one line.
        source: the paper and its table or figure.
        run: carries it out.
    """

    name: str
    title: str
    source: str
    run: Callable[[Request], Outcome]

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
    """Write ``results.json`` (the claims), ``claims.csv``, ``cells.csv``, a CSV file for every other table, and
    ``reproduction.json`` (everything).

    Raises:
        ValueError: a value is not finite (a bug of the experiment: what diverges is to be told by name).
    """
    claims = [asdict(claim) for claim in outcome.claims]
    everything = {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        **about,
        "settings": outcome.settings,
        "notes": outcome.notes,
        "claims": claims,
        "cells": [asdict(cell) for cell in outcome.cells],
        "tables": outcome.tables,
        "curves": {title: asdict(figure) for title, figure in outcome.figures.items()},
    }
    text = json.dumps(everything, indent=2, allow_nan=False)  # nothing is written if a number is not finite
    write_atomically(folder / "results.json", json.dumps(claims, indent=2) + "\n")
    write_atomically(folder / "reproduction.json", text + "\n")
    write_atomically(folder / "cells.json", json.dumps(everything["cells"], indent=2) + "\n")
    tables = {"cells": everything["cells"], "claims": claims}
    tables |= {slug(title): rows for title, rows in outcome.tables.items()}
    for name, rows in tables.items():
        if rows:
            lines = io.StringIO()
            writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_atomically(folder / f"{name}.csv", lines.getvalue())
