"""The files of a folder, read with care: what is missing or damaged is said in one sentence that names the file."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from commonground.access import reason
from commonground.engine.rows import Rows
from commonground.engine.state.csv_rows import CsvRows
from commonground.engine.state.folder import RunFolder
from commonground.errors import ConfigError, RunError
from commonground.report.format import number
from commonground.tasks import Headline

__all__ = ["RunFiles", "algorithm_title", "headline_of", "read_json", "read_run"]


@dataclass(frozen=True)
class RunFiles:
    """What a run's folder holds.

    Attributes:
        folder: where it was read.
        config: ``config.toml``, empty if there is none.
        summary: ``summary.json``.
        rounds: ``rounds.jsonl``, in order.
        clients: ``clients.csv``, as text; each row is made when it is asked for.
        split: ``split.json``, or None.
    """

    folder: Path
    config: dict[str, Any] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)
    rounds: list[dict[str, Any]] = field(repr=False)
    clients: Rows = field(repr=False)
    split: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def title(self) -> str:
        """The method's name for people."""
        return algorithm_title(str(self.summary["algorithm"])) + (
            "+FT" if self.config.get("finetune_epochs", 0) else ""
        )

    @cached_property
    def headline(self) -> Headline:
        """The metric it is judged by."""
        return Headline.of(self.summary)

    @property
    def results(self) -> list[float]:
        """The headline metric of each client's own model, for the clients for which it is defined."""
        return self.values(self.headline)

    def values(self, metric: Headline) -> list[float]:
        """A metric of each client's own model, for the clients for which it is defined."""
        found = self.clients.numbers(metric.personal)
        values: list[float] = found[np.isfinite(found)].tolist()
        return values

    def curve(self, key: str) -> tuple[list[float], list[float]]:
        """Rounds at which a figure was measured, and its values."""
        found = [(row["round"], value) for row in self.rounds if (value := number(row.get(key))) is not None]
        return [x for x, _ in found], [y for _, y in found]

    def against_bytes(self, key: str) -> tuple[list[float], list[float]]:
        """Bytes all clients had sent when a figure was measured, and its values."""
        sent, x, y = 0.0, [], []
        for row in self.rounds:
            sent += number(row.get("bytes_up")) or 0
            value = number(row.get(key))
            if value is not None:
                x.append(sent)
                y.append(value)
        return x, y

    @property
    def panel(self) -> int | None:
        """How many clients were tested during training, if that is not all of them."""
        counts = [row.get("evaluated_clients") or 0 for row in self.rounds]
        most = max(counts, default=0)
        return most if 0 < most < len(self.clients) else None


def as_number(text: str | None) -> float | None:
    """A field of a CSV file as a finite number, or None."""
    try:
        return number(float(text)) if text else None
    except ValueError:
        return None


def algorithm_title(name: str) -> str:
    """The title of an algorithm of ours, or its name."""
    from commonground.algorithms import registry, yardsticks

    known = registry | yardsticks
    return known[name].title if name in known else name


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"'{path}' is missing, and the report is made from it") from None
    except OSError as error:
        raise RunError(f"'{path}' cannot be read: {reason(error, path)}") from None


def _text(path: Path) -> str:
    try:
        return _content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"'{path}' cannot be read: {reason(error, path)}") from None


def read_json(path: Path, kind: type[dict[str, Any]] | type[list[Any]] = dict) -> Any:
    """A JSON file that holds an object (or a list).

    Raises:
        RunError: it is missing, damaged or something else.
    """
    try:
        value = json.loads(_text(path))
    except ValueError as error:
        raise RunError(f"'{path}' is damaged: {error}") from None
    if not isinstance(value, kind):
        raise RunError(f"'{path}' should hold a JSON {'object' if kind is dict else 'list'}")
    return value


def _rounds(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index, line in enumerate(_text(path).splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            raise RunError(f"'{path}' is damaged in line {index}: it is not JSON") from None
        if not isinstance(row, dict) or number(row.get("round")) is None:
            raise RunError(f"'{path}' is damaged in line {index}: it has no round")
        rows.append(row)
    return rows


def _clients(path: Path, column: str) -> Rows:
    try:
        rows = CsvRows(_content(path))
    except (ValueError, csv.Error) as error:
        raise RunError(f"'{path}' is damaged: {error}") from None
    if not rows or column not in rows.names:
        raise RunError(f"'{path}' is damaged: it should have one line per client with a column {column}")
    return rows


def headline_of(about: Mapping[str, Any], path: Path) -> Headline:
    """The metric by which what a file tells of is judged.

    Raises:
        RunError: the file names a task that nobody has defined.
    """
    try:
        return Headline.of(about)
    except ConfigError as error:
        raise RunError(f"'{path}' cannot be shown: {error}") from None


def _split(value: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    names, train = value.get("class_names"), value.get("train")
    fits = (
        isinstance(names, list | tuple)
        and isinstance(train, list | tuple)
        and train
        and all(isinstance(row, list | tuple) and len(row) == len(names) for row in train)
        and all(number(count) is not None for row in train for count in row)
    )
    if not fits:
        raise RunError(f"{where} should hold 'class_names' and, in 'train', for every client one count per class")
    return value


def read_run(folder: Path, split: Mapping[str, Any] | None = None) -> RunFiles:
    """Read a finished run.

    Args:
        folder: the run's folder.
        split: what ``split.json`` would hold, for a folder without one.

    Raises:
        RunError: the folder holds no finished run, or a file is damaged.
    """
    if not folder.is_dir():
        raise RunError(f"'{folder}' is not a folder")
    if not (folder / "summary.json").is_file():
        if (folder / "config.toml").is_file():
            raise RunError(
                f"the run in '{folder}' is not finished: there is no summary.json; continue it with --resume"
            )
        raise RunError(f"'{folder}' holds no run: there is no summary.json")
    if not (folder / "rounds.jsonl").is_file():
        raise RunError(
            f"'{folder}' holds no rounds, and the report is made from them: there is no rounds.jsonl (a client of a "
            "network keeps its own model alone; the run is with its server)"
        )
    summary = read_json(folder / "summary.json")
    own = headline_of(summary, folder / "summary.json").personal
    found = summary.get(own)
    if "algorithm" not in summary or not isinstance(found, dict) or "mean" not in found:
        raise RunError(f"'{folder / 'summary.json'}' is damaged: it should name the algorithm and {own}")
    try:
        config = tomllib.loads(_text(folder / "config.toml")) if (folder / "config.toml").is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"'{folder / 'config.toml'}' is damaged: {error}") from None
    if (folder / "split.json").is_file():
        split = _split(read_json(folder / "split.json"), f"'{folder / 'split.json'}'")
    elif split is not None:
        split = _split(split, "the split")
    rounds, clients = _rounds(folder / "rounds.jsonl"), _clients(folder / "clients.csv", own)
    if "sha256" in summary:  # last, since a file that cannot be read has a sentence of its own
        RunFolder(folder).check_results()
    return RunFiles(folder, config, summary, rounds, clients, split)
