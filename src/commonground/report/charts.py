"""Figures as small frozen descriptions: what is drawn, its values as CSV, and where on the drawing each value lies.

:func:`commonground.report.drawing.draw` makes of one a PNG, an SVG for the page and a CSV.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from commonground.report.format import Unit, show
from commonground.report.palette import INK, dash, series_color
from commonground.tasks.headline import in_figures
from commonground.terminal import human_bytes

if TYPE_CHECKING:  # matplotlib is loaded with the first figure, not with the package
    from matplotlib.axes import Axes

__all__ = ["CellChart", "Chart", "Interval", "IntervalChart", "Line", "LineChart"]

WIDTH, HEIGHT = 346.0, 218.0  # points, as wide as a phone's column: text stays readable there without a second drawing
MAX_STOPS = 400  # values of a line that answer to the pointer; the CSV holds all
LABEL_SIZE, LABEL_LINE = 8.5, 11.0  # points: of a label above its row, and from one of its lines to the next
ACROSS = 52  # characters beside one another below a picture of cells
LABEL_WIDTH = WIDTH - 46  # points, so wide that what an axis needs beside itself has room as well
ROW = 36.0  # points, of a row with a label of one line above it


@dataclass(frozen=True)
class Line:
    """One series.

    Attributes:
        label: its name.
        x, y: its points.
        low, high: a band around y, or None.
        color: number of its colour and dash pattern.
        level: y is one value for all x, drawn as a horizontal line.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    color: int = 0
    level: bool = False


@dataclass(frozen=True)
class Interval:
    """One row of an :class:`IntervalChart`: a value, the range around it and what it is compared with."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    compared: float | None = None
    color: int = 0


@dataclass(frozen=True, kw_only=True)
class Chart(ABC):
    """A figure.

    Attributes:
        name: of its files.
        title: a heading.
        reads: one or two sentences: what it shows and how to read it.
        sources: the files it was made from.
    """

    name: str
    title: str
    reads: str
    sources: tuple[str, ...]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in points."""
        return WIDTH, HEIGHT

    @property
    def legend(self) -> list[tuple[str, int]]:
        """Labels and colour numbers; empty where there is nothing to tell apart."""
        return []

    @abstractmethod
    def plot(self, axes: Axes) -> None:
        """Draw."""

    @abstractmethod
    def hover(self, place: Callable[[Any, Any], tuple[list[float], list[float]]]) -> dict[str, Any]:
        """Values and where they lie; ``place`` turns data into the drawing's coordinates."""

    @abstractmethod
    def rows(self) -> Iterable[Sequence[Any]]:
        """The CSV, its heading first."""


@dataclass(frozen=True, kw_only=True)
class LineChart(Chart):
    """Lines over a common axis.

    Attributes:
        lines: at least one.
        x_label, y_label: of the axes.
        x_unit, y_unit: how values are written.
        log_x, log_y: logarithmic axes.
        dots: mark every value.
        nearest: the pointer finds the nearest value instead of all values at its x.
        names: what a value is called under the pointer, one per x (instead of the x label and value).
    """

    lines: tuple[Line, ...]
    x_label: str
    y_label: str
    x_unit: Unit = "integer"
    y_unit: Unit = "percent"
    log_x: bool = False
    log_y: bool = False
    dots: bool = False
    nearest: bool = False
    names: tuple[str, ...] = ()

    @property
    def legend(self) -> list[tuple[str, int]]:
        """See :class:`Chart`."""
        return [(line.label, line.color) for line in self.lines] if len(self.lines) > 1 else []

    def plot(self, axes: Axes) -> None:
        """See :class:`Chart`."""
        if self.log_x:
            axes.set_xscale("log")
        if self.log_y:
            axes.set_yscale("log")
        for index, line in enumerate(self.lines):
            look: dict[str, Any] = {"color": series_color(line.color)}
            twin = any(list(other.y) == list(line.y) for other in self.lines[:index])
            pattern = dash(line.color) or ((5, 5) if twin else ())  # a line that covers another lets it through
            if pattern and not self.dots:
                look["dashes"] = pattern
            if line.level:
                axes.axhline(line.y[0], **look)
                continue
            if line.low is not None and line.high is not None and len(line.x) > 1:
                axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.16, linewidth=0)
            if self.dots:
                axes.plot(line.x, line.y, linestyle="none", marker="o", markersize=3.6, alpha=0.85, **look)
            else:
                axes.plot(line.x, line.y, marker="o" if len(line.x) == 1 else "", markersize=4, **look)
        places = {float(v) for line in self.lines if not line.level for v in line.x}
        _axis(axes.xaxis, self.x_unit, self.x_label, self.log_x, _apart(places) if self.log_x else ())
        if self.x_unit == "integer" and len(places) == 1:
            axes.set_xticks(list(places))  # between whole numbers there is nothing to write
        _axis(axes.yaxis, self.y_unit, self.y_label, self.log_y)
        axes.grid(visible=False, axis="x")
        if self.y_unit == "percent" and not self.log_y:
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, -0.02), min(max(high, low + 0.05), 1.02))

    def hover(self, place: Callable[[Any, Any], tuple[list[float], list[float]]]) -> dict[str, Any]:
        """See :class:`Chart`."""
        series = []
        for line in self.lines:
            if line.level:
                continue
            keep = _thinned(len(line.x))
            x, y = [line.x[i] for i in keep], [line.y[i] for i in keep]
            px, py = place(x, y)
            entry = {"n": line.label, "c": line.color % 7, "px": px, "py": py, "x": _short(x), "y": _short(y)}
            if line.low is not None and line.high is not None:
                entry |= {"lo": _short([line.low[i] for i in keep]), "hi": _short([line.high[i] for i in keep])}
            if self.names:
                entry["t"] = [self.names[i] for i in keep]
            series.append(entry)
        return {
            "k": "near" if self.nearest else "x",
            "xn": self.x_label,
            "xu": self.x_unit,
            "yu": self.y_unit,
            "s": series,
        }

    def rows(self) -> Iterable[Sequence[Any]]:
        """See :class:`Chart`."""
        yield "series", self.x_label, self.y_label, "low", "high", *(["name"] if self.names else [])
        for line in self.lines:
            for i, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
                low = None if line.low is None else line.low[i]
                high = None if line.high is None else line.high[i]
                numbers = (_written(value, self.y_unit) for value in (y, low, high))
                yield line.label, x, *numbers, *([self.names[i]] if self.names else [])


@dataclass(frozen=True, kw_only=True)
class IntervalChart(Chart):
    """Values with a range, one under the other.

    Attributes:
        intervals: from top to bottom.
        x_label: of the axis.
        unit: of the values.
        zero: draw a line at zero.
        compared: what the hollow marks are, where there are any.
    """

    intervals: tuple[Interval, ...]
    x_label: str
    unit: Unit = "percent"
    zero: bool = False
    compared: str = ""

    @property
    def size(self) -> tuple[float, float]:
        """See :class:`Chart`."""
        return WIDTH, max(110.0, 52 + (sum(self._heights) if self.long else 26.0 * len(self.intervals)))

    @property
    def long(self) -> bool:
        """Whether labels need lines of their own, above their row."""
        return any(len(row.label) > 20 for row in self.intervals)

    @cached_property
    def _labels(self) -> list[list[str]]:
        """Labels above their rows, in lines."""
        return [_wrapped(row.label, LABEL_WIDTH, LABEL_SIZE) for row in self.intervals]

    @property
    def _heights(self) -> list[float]:
        """Of the rows below such labels, in points."""
        return [ROW + LABEL_LINE * (len(lines) - 1) for lines in self._labels]

    @property
    def _places(self) -> list[float]:
        """Of the marks on the y axis: a row has a length of 1, or its height where its label stands above it."""
        return list(np.cumsum(self._heights)) if self.long else [float(y) for y in range(len(self.intervals))]

    def plot(self, axes: Axes) -> None:
        """See :class:`Chart`."""
        places = self._places
        for y, row in zip(places, self.intervals, strict=True):
            color = series_color(row.color)
            if row.low is not None and row.high is not None:
                axes.plot([row.low, row.high], [y, y], color=color, linewidth=4, alpha=0.35)
            axes.plot([row.value], [y], color=color, marker="o", markersize=6)
            if row.compared is not None:
                axes.plot(
                    [row.compared], [y], color=INK["text"][0], marker="D", markersize=5.5, fillstyle="none", linewidth=0
                )
        if self.zero:
            axes.axvline(0, color=INK["soft"][0], linewidth=1)
        axes.set_ylim(len(self.intervals) - 0.4, -0.6)
        if self.long:
            axes.set_ylim(places[-1] + 0.5 * ROW, 0.15 * ROW)
            axes.set_yticks([])
            for y, lines in zip(places, self._labels, strict=True):
                for line, text in enumerate(reversed(lines)):
                    # The axis is as wide as the figure leaves it, whatever stands above its rows.
                    axes.text(
                        0,
                        y - 0.28 * ROW - LABEL_LINE * line,
                        text,
                        transform=axes.get_yaxis_transform(),
                        va="baseline",
                        size=LABEL_SIZE,
                    ).set_in_layout(False)
        else:
            axes.set_yticks(range(len(self.intervals)), [row.label for row in self.intervals])
            for label in axes.get_yticklabels():
                label.set_color(INK["text"][0])
        _axis(axes.xaxis, self.unit, self.x_label)
        axes.spines.left.set_visible(False)
        axes.grid(visible=False, axis="y")

    def hover(self, place: Callable[[Any, Any], tuple[list[float], list[float]]]) -> dict[str, Any]:
        """See :class:`Chart`."""
        series = []
        for y, row in enumerate(self.intervals):
            px, py = place([row.value], [y])
            entry: dict[str, Any] = {"n": row.label, "c": row.color % 7, "px": px, "py": py, "y": _short([row.value])}
            if row.low is not None and row.high is not None:
                entry |= {"lo": _short([row.low]), "hi": _short([row.high])}
            if row.compared is not None:
                entry["t"] = [f"{self.compared} {show(row.compared, self.unit)}"]
            else:
                entry["t"] = [""]
            series.append(entry)
        return {"k": "row", "yu": self.unit, "s": series}

    def rows(self) -> Iterable[Sequence[Any]]:
        """See :class:`Chart`."""
        yield "name", self.x_label, "low", "high", *([self.compared] if self.compared else [])
        for row in self.intervals:
            numbers = (row.value, row.low, row.high, *([row.compared] if self.compared else []))
            yield row.label, *(_written(value, self.unit) for value in numbers)


def _written(value: float | None, unit: Unit) -> float | str:
    """A plotted value as its column is headed: points are hundredths."""
    if value is None:
        return ""
    return 100 * value if unit == "points" else value


def spread_places(count: int, most: int = 5_000) -> list[int]:
    """Places in an order of so many, all of them or ``most`` spread evenly from the first to the last: a curve through
    these looks the same, and its file stays small.
    """
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


def through(shown: int, count: int) -> str:
    """Whom a curve runs through, as the end of a sentence."""
    return "all clients" if shown == count else f"{shown:,} of {count:,} clients, spread evenly over their order"


@dataclass(frozen=True, kw_only=True)
class CellChart(Chart):
    """A table of counts as a picture: the darker, the more.

    Attributes:
        cells: counts [rows][columns].
        row_names, column_names: one per row and column.
        x_label, y_label: what columns and rows are.
    """

    cells: tuple[tuple[float, ...], ...]
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    x_label: str
    y_label: str

    @property
    def size(self) -> tuple[float, float]:
        """See :class:`Chart`."""
        return WIDTH, min(max(60 + 13.0 * len(self.cells), 130.0), 420.0)

    def plot(self, axes: Axes) -> None:
        """See :class:`Chart`."""
        counts = np.asarray(self.cells, dtype=np.float64)
        # One hue, the count as opacity: the same picture serves a light and a dark page. The root keeps small counts
        # visible beside large ones.
        picture = np.zeros((*counts.shape, 4), dtype=np.float64)
        picture[..., :3] = [int(series_color(0)[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        picture[..., 3] = np.sqrt(counts / max(float(counts.max()), 1e-12))
        axes.imshow(picture, aspect="auto", interpolation="none")
        for axis, names in ((axes.xaxis, self.column_names), (axes.yaxis, self.row_names)):
            crowded = max(map(len, names), default=0) > 3
            step = -(-len(names) // (26 if axis is axes.yaxis else 7 if crowded else 10))
            ticks = list(range(0, len(names), step))
            room = 14 if axis is axes.yaxis else max(5, ACROSS // max(1, len(ticks)))
            axis.set_ticks(ticks, _told_apart([names[i] for i in ticks], room, by_end=axis is axes.xaxis))
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        axes.grid(visible=False)
        axes.spines[:].set_visible(True)

    def hover(self, place: Callable[[Any, Any], tuple[list[float], list[float]]]) -> dict[str, Any]:
        """See :class:`Chart`."""
        rows, columns = len(self.row_names), len(self.column_names)
        px, py = place([-0.5, columns - 0.5], [-0.5, rows - 0.5])
        cells = [[int(v) if float(v).is_integer() else round(float(v), 3) for v in row] for row in self.cells]
        return {
            "k": "cells",
            "box": [px[0], py[0], px[1], py[1]],
            "rows": self.row_names,
            "cols": self.column_names,
            "xn": self.x_label,
            "yn": self.y_label,
            "v": cells,
        }

    def rows(self) -> Iterable[Sequence[Any]]:
        """See :class:`Chart`."""
        yield f"{self.y_label} \\ {self.x_label}", *self.column_names
        for name, row in zip(self.row_names, self.cells, strict=True):
            yield name, *row


def _apart(places: Iterable[float]) -> Sequence[float]:
    """Values of a logarithmic axis, if there is room for a tick at each of them; else none."""
    ordered = sorted(places)
    if len(ordered) < 2 or ordered[0] <= 0:
        return ()
    logs = np.log(ordered)
    return ordered if np.diff(logs).min() >= (logs[-1] - logs[0]) / 10 else ()


def _axis(axis: Any, unit: Unit, label: str, log: bool = False, places: Sequence[float] = ()) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    axis.set_label_text(label)
    if log:
        low, high = axis.get_view_interval()
        if places:
            axis.set_major_locator(FixedLocator(places))
            axis.set_minor_locator(NullLocator())
        elif 0 < low < high < 40 * low:  # hardly more than one power of ten: ticks in between as well
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda v, _: _power(v)))
    else:
        axis.set_major_locator(MaxNLocator(5, integer=unit == "integer", steps=[1, 2, 2.5, 5, 10]))
    if unit == "percent":
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.4g} %"))
    elif unit == "points":
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:+.3g}".replace("-", "−") if v else "0"))
    elif unit == "value":
        axis.set_major_formatter(FuncFormatter(lambda v, _: _tick(v, axis.get_majorticklocs())))
    elif unit == "change":
        axis.set_major_formatter(FuncFormatter(lambda v, _: _tick(v, axis.get_majorticklocs(), "+") if v else "0"))
    elif unit == "bytes":
        axis.set_major_formatter(FuncFormatter(lambda v, _: human_bytes(v).replace(".0 ", " ") if v else "0"))
    elif unit == "integer":
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))


def _tick(value: float, places: Sequence[float], sign: str = "") -> str:
    """A tick of an axis without a unit, with the decimals that tell it from its neighbours."""
    step = abs(places[1] - places[0]) if len(places) > 1 else abs(value)
    if value and not 1e-4 <= max(abs(value), step) < 1e9:
        return in_figures(value, 3, sign=sign).replace("-", "−")
    decimals = next((d for d in range(9) if math.isclose(round(step, d), step, rel_tol=1e-3)), 9)
    return f"{value:{sign},.{decimals}f}".replace("-", "−")


def _power(value: float) -> str:
    """A tick of a logarithmic axis: a number where it is short, else a power of ten (math text is switched off)."""
    exponent = round(math.log10(value)) if value > 0 else 0
    if -3 <= exponent <= 4 or not math.isclose(value, 10.0**exponent):
        return f"{value:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _short(values: Iterable[float]) -> list[float]:
    """Seven digits: more than is shown, less than would swell the page."""
    return [float(f"{value:.7g}") if not float(value).is_integer() else int(value) for value in values]


def _thinned(count: int) -> list[int]:
    """At most MAX_STOPS positions, evenly spaced, first and last among them."""
    if count <= MAX_STOPS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (MAX_STOPS - 1)) for i in range(MAX_STOPS)})


def _wrapped(text: str, width: float, size: float) -> list[str]:
    """A text in lines of at most so many points, broken between words, or inside of one that is wider than a line."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=["DejaVu Sans"], size=size)

    def fits(line: str) -> bool:
        return bool(text_to_path.get_text_width_height_descent(line, font, ismath=False)[0] <= width)

    lines = [""]
    for word in text.split():
        line = f"{lines[-1]} {word}".lstrip()
        if fits(line):
            lines[-1] = line
            continue
        lines += [""] if lines[-1] else []
        for character in word:
            if lines[-1] and not fits(lines[-1] + character):
                lines.append("")
            lines[-1] += character
    return lines


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _end(text: str, length: int) -> str:
    return text if len(text) <= length else "…" + text[1 - length :].lstrip()


def _ends(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    first = length // 2
    return text[:first].rstrip() + "…" + text[len(text) - (length - first - 1) :].lstrip()


def _told_apart(names: Sequence[str], room: int, *, by_end: bool) -> list[str]:
    """Names cut to so many characters: their ends are kept (``…041``), their beginnings, or both, whichever tells most
    of them apart.
    """
    ways = (_end, _cut, _ends) if by_end else (_cut, _end, _ends)
    return max(([way(name, room) for name in names] for way in ways), key=lambda found: len(set(found)))
