"""A chart drawn, once, for the page and for paper."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from commonground.report.charts import Chart
from commonground.report.palette import INK, LIGHT_TO_VARIABLE, dash, series_color
from commonground.spreadsheet import cell

if TYPE_CHECKING:  # matplotlib is loaded with the first figure, not with the package
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Drawing", "draw"]

STYLE: dict[str, Any] = {  # rcParams
    "axes.axisbelow": True,
    "axes.edgecolor": INK["grid"][0],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK["soft"][0],
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": INK["ground"][0],
    "font.size": 9,
    "grid.color": INK["grid"][0],
    "grid.linewidth": 0.7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.labelcolor": INK["text"][0],
    "lines.dash_capstyle": "round",
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "text.color": INK["text"][0],
    "text.parse_math": False,
    "xtick.color": INK["grid"][0],
    "xtick.labelcolor": INK["soft"][0],
    "xtick.labelsize": 9,
    "ytick.color": INK["grid"][0],
    "ytick.labelcolor": INK["soft"][0],
    "ytick.labelsize": 9,
    "ytick.major.size": 0,
}


@dataclass(frozen=True)
class Drawing:
    """A drawn chart.

    Attributes:
        svg: for the page, colours as CSS variables.
        png: for papers and slides.
        csv: every plotted value at full precision.
        hover: what the page's script needs, JSON that is safe inside a script element.
    """

    svg: str
    png: bytes
    csv: str
    hover: str


def draw(chart: Chart) -> Drawing:
    """Draw a chart, once, for the page and for paper."""
    import matplotlib
    from matplotlib.figure import Figure

    # A label in a script that the font lacks is drawn as boxes in the PNG; the page's browser knows better.
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()  # what a user's own matplotlibrc says does not change our figures
        cast(Any, matplotlib.rcParams).update(STYLE | {"svg.hashsalt": chart.name})
        width, height = chart.size
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        axes = figure.add_subplot()
        chart.plot(axes)
        _fit(figure, axes)

        def place(x: Any, y: Any) -> tuple[list[float], list[float]]:
            if not len(x):
                return [], []
            points = axes.transData.transform(np.column_stack([x, y]))
            return [round(float(p), 1) for p in points[:, 0]], [round(height - float(p), 1) for p in points[:, 1]]

        hover = chart.hover(place)
        box = axes.get_window_extent()
        hover["plot"] = [round(v, 1) for v in (box.x0, height - box.y1, box.x1, height - box.y0)]
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        _add_legend(figure, chart)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=200, bbox_inches="tight", pad_inches=0.1)
    text = io.StringIO()
    rows = ([cell(value, numbers=True) if isinstance(value, str) else value for value in row] for row in chart.rows())
    csv.writer(text, lineterminator="\n").writerows(rows)
    return Drawing(_for_page(svg.getvalue().decode(), chart), png.getvalue(), text.getvalue(), _script_safe(hover))


def _fit(figure: Figure, axes: Axes) -> None:
    """Margins just wide enough for the labels."""
    width, height = figure.get_size_inches() * 72
    figure.subplots_adjust(0.2, 0.2, 0.97, 0.97)
    box, tight = axes.get_window_extent(), axes.get_tightbbox()
    if tight is None:
        return
    left, bottom = (box.x0 - tight.x0 + 3) / width, (box.y0 - tight.y0 + 3) / height
    right, top = (max(tight.x1 - box.x1, 0) + 5) / width, (max(tight.y1 - box.y1, 0) + 5) / height
    figure.subplots_adjust(left, bottom, 1 - right, 1 - top)


def _add_legend(figure: Figure, chart: Chart) -> None:
    from matplotlib.lines import Line2D

    if not chart.legend:
        return
    handles = []
    for _, color in chart.legend:
        handle = Line2D([], [], color=series_color(color))
        if dash(color):
            handle.set_dashes(dash(color))
        handles.append(handle)
    labels = [label.lstrip("_") or label for label, _ in chart.legend]
    columns = min(len(labels), 3)
    figure.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, columnspacing=1.2)


def _for_page(svg: str, chart: Chart) -> str:
    """An SVG as it may stand inside the page: no ids to collide, no addresses, colours as variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(?<=<image)([^>]*?) id="[^"]*"', r"\1", svg)
    svg = svg.replace("xlink:href=", "href=")
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    label = html.escape(f"{chart.title}. {chart.reads} Values by the arrow keys.")
    svg = re.sub(
        r"<svg.*?>", f'<svg {view[0]} role="img" tabindex="0" aria-label="{label}">', svg, count=1, flags=re.DOTALL
    )
    svg = re.sub("|".join(LIGHT_TO_VARIABLE), lambda found: LIGHT_TO_VARIABLE[found[0]], svg)
    return re.sub(r"\n\s*", "\n", svg).strip()


def _script_safe(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
