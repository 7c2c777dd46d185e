"""Names in pictures and tiles: told apart where they are cut, and of several that are equally good none is left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from commonground.report import write_report
from commonground.report.charts import Line, LineChart, _told_apart
from tests.report.test_pages import Page


@pytest.mark.parametrize(
    ("names", "room", "shown"),
    [
        (["a", "bb"], 5, ["a", "bb"]),
        (["customer 041", "customer 142"], 5, ["…041", "…142"]),
        (["Nord-Klinik", "St Mary"], 11, ["Nord-Klinik", "St Mary"]),
        (["Berlin North", "Berlin South", "Bonn North"], 6, ["…North", "…South", "…North"]),
        (["first of all", "second of all"], 6, ["first…", "secon…"]),
        (["site A of X", "site A of Y", "site B of X"], 7, ["…A of X", "…A of Y", "…B of X"]),
        (["A long way off", "B long way off", "A long way on"], 6, ["A l…ff", "B l…ff", "A l…on"]),
    ],
)
def test_names_that_are_cut_are_told_apart(names: list[str], room: int, shown: list[str]) -> None:
    assert _told_apart(names, room, by_end=True) == shown


def test_all_that_share_the_first_place_are_named(comparison_folder: Path) -> None:
    path = comparison_folder / "comparison.json"
    about = json.loads(path.read_text())
    for method in about["methods"][:2]:
        method["p10"] = {"mean": 0.9999, "std": None}
    for method in about["methods"]:
        method["min"] = {"mean": 0.2525, "std": None}
    path.write_text(json.dumps(about))
    text = Page(write_report(comparison_folder)).text
    first, second = (method["title"] for method in about["methods"][:2])
    assert f"{first} and {second}" in text
    cells = re.findall(r"<td[^>]*>(?:<b>|<strong>)?25\.2", (comparison_folder / "report.html").read_text("utf-8"))
    assert len(cells) == len(about["methods"])
    assert not any("<b" in cell or "best" in cell for cell in cells)  # what all have alike is nobody's best


def test_a_run_tells_how_it_is_run_again(run_folder: Path) -> None:
    text = Page(write_report(run_folder)).text
    said = re.search(r"\(FOLDER is its own\): commonground train --config FOLDER/(\S+) --out NEW_FOLDER", text)
    assert said is not None
    assert (run_folder / said[1]).is_file()


def test_a_single_round_is_named_once() -> None:
    line = Line("FedRep", (1.0,), (0.5,))
    chart = LineChart(
        name="a", title="A", reads="", sources=(), lines=(line,), x_label="round", y_label="loss", x_unit="integer"
    )
    figure = Figure()
    axes = figure.subplots()
    chart.plot(axes)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1"]
