"""The table of a comparison's tuning: what a grid tried, and what it chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commonground.report.format import number, unit_of
from commonground.report.page import Cell, escape, table
from commonground.table import Column
from commonground.tasks import Headline

__all__ = ["tuning_table"]


def tuning_table(entry: Mapping[str, Any], metric: Headline, place: str) -> str:
    """Every candidate of a grid with its score on validation rows, a column per seed; the chosen ones are marked.

    Args:
        entry: what ``comparison.json`` holds.
        metric: by which candidates are judged.
        place: of that file, as the page sees it.

    Returns:
        Markup, empty where nothing was tuned.
    """
    tuned = [(i, each) for i, each in enumerate(entry.get("tuning") or []) if isinstance(each, Mapping)]
    if not tuned:
        return ""
    seeds = list(dict.fromkeys(each.get("seed") for _, each in tuned))
    columns = [Column("Method"), Column("Candidate"), *(Column(f"Validation, seed {seed}", True) for seed in seeds)]
    rows: dict[tuple[str, str], list[Cell]] = {}
    for place_of, each in tuned:
        for number_of, tried in enumerate(each.get("candidates") or []):
            settings = ", ".join(f"{key} {value}" for key, value in tried.get("settings", {}).items())
            row = rows.setdefault((str(each.get("title")), settings), [Cell("–")] * len(seeds))
            row[seeds.index(each.get("seed"))] = _tried(
                metric, each, tried, f"tuning[{place_of}].candidates[{number_of}]"
            )
    cells = [[Cell(title), Cell(settings, kind="how"), *row] for (title, settings), row in rows.items()]
    edges = [key for _, each in tuned for key in each.get("on_edge") or {}]
    remark = f"<p>On the grid's edge: {escape(', '.join(dict.fromkeys(edges)))}; see the notes.</p>" if edges else ""
    return table("Tuning on validation samples", columns, cells, [f"{place}comparison.json"], titled=True) + remark


def _tried(metric: Headline, tuning: Mapping[str, Any], tried: Mapping[str, Any], key: str) -> Cell:
    """A candidate's score."""
    name = f"validation_{metric.key}"
    score = number(tried.get(name))
    if score is None:
        return Cell("undefined" if tried.get("undefined") else "diverged")
    kind = "best" if tried.get("settings") == tuning.get("chosen") else ""
    return Cell.of(score, unit_of(metric), f"{key}.{name}", kind=kind)
