"""The numbers that the papers print."""

from __future__ import annotations

import csv
import io
from importlib import resources
from typing import Literal

__all__ = ["printed", "printed_lead", "printed_side"]


def printed(name: str) -> list[dict[str, str]]:
    """Rows of a table as printed in a paper (see ``printed/SOURCES.md``)."""
    text = resources.files("commonground.papers").joinpath("printed", f"{name}.csv").read_text("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def printed_lead(one: float | None, other: float | None) -> float | None:
    """By how much one printed value is above another, to two digits; None where either is not printed."""
    return None if one is None or other is None else round(one - other, 2)


def printed_side(lead: float | None, said: Literal["above", "below"] = "above") -> Literal["above", "below"]:
    """On which side of the other a paper prints the one: a claim of its table is judged by what the table says, also
    where that is not what the text says of all columns (``said``, which stands where nothing is printed).
    """
    if not lead:
        return said
    return "above" if lead > 0 else "below"
