"""What is kept of cells that were measured again: ``reruns.csv``, beside the table's cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from commonground.engine.state.files import write_atomically
from commonground.errors import RunError
from commonground.table import Table

__all__ = ["ALIKE", "FILE", "OTHER", "OTHER_WEIGHTS", "in_words", "read_reruns", "write_reruns"]

FILE = "reruns.csv"
ALIKE, OTHER_WEIGHTS, OTHER = "to the last digit, weights too", "to the last digit; other weights", "no"
_NEEDED = ("column", "method", "change", "seed", "kept (%)", "now (%)", "off by", "over seeds", "the same")


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
