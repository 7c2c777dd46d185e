"""The numbers that the papers print."""

from __future__ import annotations

import csv
import io
from importlib import resources

__all__ = ["printed", "printed_lead"]


def printed(name: str) -> list[dict[str, str]]:
    """Rows of a table as printed in a paper (see ``printed/SOURCES.md``)."""
    text = resources.files("commonground.papers").joinpath("printed", f"{name}.csv").read_text("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def printed_lead(one: float | None, other: float | None) -> float | None:
    """By how much one printed value is above another, to two digits; None where either is not printed."""
    return None if one is None or other is None else round(one - other, 2)
