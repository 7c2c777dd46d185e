"""A reproduction's claims on its page: which are drawn, that what they say is whole, and that their table fits."""

from __future__ import annotations

import csv
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from commonground.report import write_report
from commonground.report.charts import LABEL_WIDTH, Interval, IntervalChart, _wrapped
from commonground.report.drawing import STYLE, _fit, draw
from tests.report.browser import chromium, use

LONG = [
    "At η = 0.5 (c = η‖b*‖² = 0.5), T = 152: δ^T ≤ ε = 1e-06 (share of seeds): not contradicted in 40 seeds",
    "At η = 0.5 (c = η‖b*‖² = 0.5), T = 152: ‖a^T(b^{T+1})ᵀ − a*b*ᵀ‖ ≤ (1 + ε')ε‖b*‖ with the largest "
    "ε' = (1 − (δ^0)²)/16 allowed (share of seeds): not contradicted in 40 seeds",
    "The error falls at least as fast as (1 − ηΔ/16)^t after T_R, eqs. (5), (6): share of seeds at or below that line "
    "from the error at T_R in every round: not contradicted in 40 seeds",
    "CIFAR-10 (50, 2), FLUTE*, head first",
]
OTHER_UNITS = [
    ("FFA-LoRA's loss is γ² + ‖b̄*‖²δ_0² to machine precision (relative deviation below 1e-14)", 0.0, 1.2e-16),
    ("FLUTE above FedPer on CIFAR-10 (100, 2)", 0.3, 0.9),
    ("The error falls like 1/√N: slope of log error against log N", 0.5, 0.5),
    ("RoLoRA falls from 3 to 50 clients on SST-2 (points lost)", 0.69, 0.5),
]


def reproduction(folder: Path, claims: list[tuple[str, Any, float]]) -> Path:
    rows = [
        {"claim": text, "source": f"Collins et al. 2021, Figure 7 and Appendix A.{index}", "paper": paper,
         "measured": measured, "low": 8.05e-17, "high": 1.65e-16, "seeds": 40, "holds": index % 2 == 0}
        for index, (text, paper, measured) in enumerate(claims)
    ]  # fmt: skip
    (folder / "reproduction.json").write_text(json.dumps({"claims": rows}))
    return folder


def drawn(folder: Path) -> list[str]:
    path = folder / "figures" / "claims.csv"
    if not path.is_file():
        return []
    with path.open() as file:
        return [row["name"] for row in csv.DictReader(file)]


def test_claims_that_say_they_measure_a_share_are_drawn_and_no_others(tmp_path: Path) -> None:
    shares = [(text, 1.0, 1.0) for text in LONG[:3]]
    write_report(reproduction(tmp_path, [*shares, *OTHER_UNITS]))
    assert drawn(tmp_path) == LONG[:3]


@pytest.mark.parametrize(
    "claim", [*OTHER_UNITS, ("FFA-LoRA plateaus around 55 % (accuracy, within 5 points)", 55.0, 60.9)]
)
def test_a_number_between_0_and_1_or_100_is_no_share_for_that(claim: tuple[str, float, float], tmp_path: Path) -> None:
    write_report(reproduction(tmp_path, [claim]))
    assert drawn(tmp_path) == []


def test_what_is_above_one_is_not_drawn_as_a_share(tmp_path: Path) -> None:
    write_report(reproduction(tmp_path, [("Error (share of the signal)", 0.1, 5e12), (LONG[0], 1.0, 0.5)]))
    assert drawn(tmp_path) == [LONG[0]]


def chart_of(labels: list[str]) -> IntervalChart:
    intervals = tuple(Interval(label, 1.0, 0.0, 1.0, 0.0) for label in labels)
    return IntervalChart(
        name="c", title="c", reads="c", sources=("c",), intervals=intervals, x_label="share", compared="paper"
    )


@pytest.mark.parametrize("labels", [LONG, LONG[:1], LONG[3:], ["x" * 300, *LONG], [LONG[0]] * 40])
def test_labels_are_whole_and_lie_on_nothing(labels: list[str]) -> None:
    chart = chart_of(labels)
    width, height = chart.size
    with mpl.rc_context():
        cast(Any, mpl.rcParams).update(STYLE)
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        chart.plot(axes)
        _fit(figure, axes)
        canvas.draw()
        texts = [text for text in axes.texts if text.get_text()]
        boxes = sorted((text.get_window_extent() for text in texts), key=lambda box: -box.y0)
        places = [float(np.asarray(line.get_ydata())[0]) for line in axes.lines]
        marks = [float(axes.transData.transform((0.0, place))[1]) for place in places]
        extent = axes.get_window_extent()
    said = "".join(label.replace(" ", "") for label in labels)
    assert sorted("".join(text.get_text().replace(" ", "") for text in texts)) == sorted(said)
    assert "…" not in "".join(text.get_text() for text in texts)
    assert all(0 <= box.x0 < box.x1 <= width for box in boxes)
    for above, below in pairwise(boxes):
        assert above.y0 >= below.y0 + 8  # a line is 11 points high, its letters up to 8
    assert max(box.y1 for box in boxes) <= height
    for mark in marks:
        assert all(mark - 4 >= box.y1 or mark + 4 <= box.y0 for box in boxes)
    assert extent.width > 0.85 * width  # the axis does not shrink for them


def test_the_picture_grows_with_its_labels() -> None:
    short, long = (chart_of([f"{label} {i}" for i in range(3)]) for label in ("a claim that is short", LONG[1]))
    assert long.size[1] > short.size[1] + 3 * 10
    svg = draw(long).svg
    assert "…" not in svg
    assert svg.count("not contradicted") + svg.count("contradicted in 40 seeds") >= 3


def test_lines_break_between_words_or_in_a_word_that_is_wider() -> None:
    for text in LONG:
        assert " ".join(_wrapped(text, LABEL_WIDTH, 8.5)) == text
    assert len(_wrapped("x" * 300, LABEL_WIDTH, 8.5)) > 4
    assert "".join(_wrapped("x" * 300, LABEL_WIDTH, 8.5)) == "x" * 300
    assert _wrapped("", LABEL_WIDTH, 8.5) == [""]


def test_columns_of_the_claims_may_be_narrow_enough_for_a_page() -> None:
    css = (Path(write_report.__code__.co_filename).parent / "page.css").read_text("utf-8")
    claim = re.search(r"tbody th\.long \{[^}]*min-width: (\d+)em[^}]*overflow-wrap: anywhere", css)
    source = re.search(r"th\.long ~ td\.how \{ min-width: (\d+)em \}", css)
    assert claim is not None
    assert source is not None
    # 14.7 pixels an em; the five columns between them need 600 at most, the page has 1038.
    assert (int(claim[1]) + int(source[1])) * 14.7 + 2 * 14 + 600 <= 1038


def test_the_table_of_claims_fits_a_desktop_and_scrolls_by_itself_on_a_phone(tmp_path: Path) -> None:
    chromium()
    claims = [(text, words, 1.2e-16) for text in LONG for words in ("FedRep converges to a small error", 1.0)]
    page = write_report(reproduction(tmp_path, claims))
    content, window = use(page, tmp_path / "profile", 1200)["tables"]["Claims"]
    assert content <= window, "a column is cut off"
    phone = use(page, tmp_path / "profile")
    content, window = phone["tables"]["Claims"]
    assert content > window  # columns keep a width that can be read
    assert phone["width"][0] <= phone["width"][1]
