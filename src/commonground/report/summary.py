"""The page of all results: claims sorted by their verdicts, cells beside the printed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commonground.report.format import FormattedFloat
from commonground.report.page import Cell, Page, escape, measured_cell, measured_cells, table
from commonground.table import Column, Table

__all__ = ["write_summary_page"]

LEADS = {
    "Experiments": "What was carried out, at which scale, and how its claims came out.",
    "What does not hold": "The 95 % interval lies on the other side of what the paper says.",
    "Open": "The interval includes no difference, or fewer than three seeds were measured.",
    "What holds": "The interval lies on the side the paper says.",
    "Withdrawn": "Judged at scale small, and otherwise at the paper's, which counts.",
    "Verdicts at both scales": "Claims that were measured at both.",
    "Cells of the papers' tables": "Accuracy in percent, printed beside measured.",
    "Cells measured again": "Drawn by a seed, trained by their own settings, compared digit by digit; differences and "
    "the standard deviation over seeds are in points.",
}


def write_summary_page(folder: Path, lead: str, tables: Mapping[str, Table], leads: Mapping[str, str]) -> Path:
    """Write ``summary.html``, self-contained.

    Args:
        folder: where to.
        lead: a sentence or two below the title.
        tables: by title; a column ``files`` says where a row's numbers are.
        leads: what is said above tables of titles that are not always the same.

    Returns:
        Its path.

    Raises:
        RunError: the folder cannot be written.
    """
    page = Page(folder, "The papers' claims, measured", lead, name="summary.html", wide=True)
    for title, drawn in tables.items():
        page.section(title, {**LEADS, **leads}.get(title, ""))
        page.add(_draw(drawn))
    return page.write()


def _draw(drawn: Table) -> str:
    """A table whose ``files`` are links."""
    heads = [Column(column.name[:1].upper() + column.name[1:], column.numeric) for column in drawn.columns]
    columns = [_column(name, [row.get(name) for row in drawn.rows], drawn.names) for name in drawn.names]
    return table(drawn.title, heads, list(zip(*columns, strict=True)), ["reproduction.json", "cells.csv"])


def _column(name: str, values: Sequence[Any], beside: Sequence[str]) -> list[Cell]:
    if name == "files":
        links = [f'<a href="{escape(str(value))}/">{escape(str(value).rsplit("/", 1)[-1])}</a>' for value in values]
        return [Cell(link, html=True) for link in links]
    if any(isinstance(value, FormattedFloat) for value in values):
        return [
            Cell(str(value), float(value)) if isinstance(value, FormattedFloat) else measured_cell(value)
            for value in values
        ]
    # Claims are of many things, and papers print as many decimals as they do.
    if name == "paper" or "claim" in beside:
        return [replace(measured_cell(value), kind="long" if name == "claim" else "") for value in values]
    return measured_cells(values, [""] * len(values))
