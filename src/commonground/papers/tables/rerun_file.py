"""What is kept of cells that were measured again: ``reruns.csv``, beside the table's cells, and whose they are."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonground.engine.state.files import write_atomically
from commonground.errors import RunError
from commonground.report.read import read_json
from commonground.table import Table

__all__ = [
    "ALIKE",
    "FILE",
    "ORIGIN",
    "OTHER",
    "OTHER_WEIGHTS",
    "Origin",
    "in_words",
    "read_origins",
    "read_reruns",
    "write_origin",
    "write_reruns",
]

FILE = "reruns.csv"
ORIGIN = "reruns.json"
ALIKE, OTHER_WEIGHTS, OTHER = "to the last digit, weights too", "to the last digit; other weights", "no"
_NEEDED = ("column", "method", "change", "seed", "kept (%)", "now (%)", "off by", "over seeds", "the same")


@dataclass(frozen=True)
class Origin:
    """The table that cells are of: those of others may have the same labels and names.

    Attributes:
        experiment, scale: by name.
        changed: settings of all runs that the user changed, as ``KEY=VALUE``.
    """

    experiment: str
    scale: str
    changed: tuple[str, ...] = ()

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Origin:
        """As ``reproduction.json`` and ``reruns.json`` have it."""
        changed = tuple(sorted(map(str, about.get("set") or [])))
        return cls(str(about.get("experiment")), str(about.get("scale")), changed)

    def __str__(self) -> str:
        return " ".join([self.experiment, "--scale", self.scale, *(f"--set {text}" for text in self.changed)])


def write_origin(folder: Path, origin: Origin) -> None:
    """Keep whose cells a folder's are: ``reruns.json``."""
    about = {"experiment": origin.experiment, "scale": origin.scale, "set": origin.changed}
    write_atomically(folder / ORIGIN, json.dumps(about, indent=2) + "\n")


def read_origins(folder: Path) -> list[Origin]:
    """Whose cells a folder's are, by ``reruns.json`` and, in a table's own folder, ``reproduction.json``.

    Raises:
        RunError: a file is damaged.
    """
    files = [folder / ORIGIN, folder / "reproduction.json"]
    return [Origin.of(read_json(file)) for file in files if file.is_file()]


def write_reruns(folder: Path, table: Table) -> None:
    """Keep the lines of :func:`~commonground.papers.tables.rerun.rerun_table` in a folder."""
    write_atomically(folder / FILE, table.to_csv())


def read_reruns(folder: Path) -> list[dict[str, str]]:
    """The lines of a folder's ``reruns.csv``; none where there is none.

    Raises:
        RunError: the file is damaged.
    """
    try:
        text = (folder / FILE).read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"'{folder / FILE}' is not readable: {error}") from None
    rows = list(csv.DictReader(io.StringIO(text)))
    if any(None in row or None in row.values() or not row.keys() >= set(_NEEDED) for row in rows):
        raise RunError(f"'{folder / FILE}' is damaged: a line has too few or too many cells")
    return rows


def in_words(rows: Sequence[Mapping[str, str]]) -> str:
    """How many cells came out as before, how far the others are off, and how far that is beside other seeds."""
    same = sum(row["the same"] == ALIKE for row in rows)
    text = f"{same} of {len(rows)} cells are the same to the last digit, final weights included"
    off = [row for row in rows if row["the same"] == OTHER and row["off by"] != "–"]
    if not off:
        return text
    furthest = max(off, key=lambda row: abs(float(row["off by"])))
    text += f"; the others are up to {abs(float(furthest['off by'])):.2f} points off"
    if furthest["over seeds"] == "–":
        return text
    return text + f", where that cell's seeds differ by {furthest['over seeds']} (standard deviation)"
