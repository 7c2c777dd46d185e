"""New clients in a run's page: how well they are served, by the number of samples they bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commonground.counted import counted
from commonground.errors import RunError
from commonground.report.charts import Line, LineChart
from commonground.report.format import unit_of
from commonground.report.page import Cell, Page, table
from commonground.report.read import headline_of, read_json
from commonground.table import Column
from commonground.tasks import Headline

__all__ = ["add_adaptation"]

FILE = "adapt.json"


def add_adaptation(page: Page, folder: Path) -> None:
    """Add a section on new clients, if ``commonground adapt`` has left its results in the run's folder.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return
    about: dict[str, Any] = read_json(path)
    headline = headline_of(about, path)
    try:
        results = about["results"]
        methods = list(dict.fromkeys(str(r["method"]) for r in results))
        page.section(
            "New clients",
            f"{counted(about['clients'], 'client')} of {about['data']} that never took part, each with a few samples "
            "of its own.",
        )
        shots = sorted({int(r["shots"]) for r in results})
        if len(shots) > 1:
            page.figures([_curve(results, methods, headline)])
        figures = {"mean": headline.title, "std": "Spread", "p10": "10th percentile", "p90": "90th percentile"}
        if about["clients"] == 1:
            del figures["std"]  # one client alone has none
        heads = ["Samples", "Way", *figures.values()]
        rows = [
            [
                Cell.of(r["shots"], "integer", f"results[{i}].shots"),
                Cell(str(r["method"])),
                *(Cell.of(r[key], unit_of(headline), f"results[{i}].{key}") for key in figures),
            ]
            for i, r in enumerate(results)
        ]
        page.add(table("New clients", [Column(head, head != "Way") for head in heads], rows, [FILE]))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"'{path}' is damaged: {error!r} is missing or of another kind") from None


def _curve(results: list[dict[str, Any]], methods: list[str], headline: Headline) -> LineChart:
    lines = []
    for color, method in enumerate(methods):
        mine = sorted((r for r in results if r["method"] == method), key=lambda r: int(r["shots"]))
        lines.append(
            Line(
                method,
                [r["shots"] for r in mine],
                [r["mean"] for r in mine],
                [r["p10"] for r in mine],
                [r["p90"] for r in mine],
                color=color,
            )
        )
    return LineChart(
        name="adapt",
        title=f"{headline.title} by number of samples",
        reads="Lines are means over the new clients, bands reach from the 10th to the 90th percentile.",
        sources=(FILE,),
        lines=tuple(lines),
        x_label="training samples per new client",
        y_label=headline.name,
        y_unit=unit_of(headline),
        log_x=True,
    )
