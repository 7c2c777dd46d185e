"""The page: its frame, tables and figures as HTML."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from commonground.access import reason
from commonground.engine.state.files import write_atomically
from commonground.errors import RunError
from commonground.quoting import visible
from commonground.report.charts import Chart
from commonground.report.drawing import Drawing, draw
from commonground.report.format import Unit, number, show, show_alike
from commonground.report.palette import PAGE, css_variables, dash
from commonground.table import Column, Table

__all__ = ["Cell", "Page", "day", "draw_table", "escape", "measured_cell", "measured_cells", "table"]

escape = html.escape


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what is read.
        value: the number behind it, at full precision; it is what the table sorts by.
        key: the number's name in its file.
        kind: a CSS class ("how", "best", "yes", "no", "long" for a heading that is a sentence).
        html: the text is markup already.
    """

    text: str
    value: float | None = None
    key: str = ""
    kind: str = ""
    html: bool = False

    @classmethod
    def of(cls, value: Any, unit: Unit, key: str = "", *, text: str | None = None, kind: str = "") -> Cell:
        """A number in a unit, or a dash."""
        count = number(value)
        return cls(show(count, unit) if text is None or count is None else text, count, key, kind)

    def to_html(self, numeric: bool, head: bool) -> str:
        """The element."""
        tag = "th" if head else "td"
        classes = " ".join(c for c in ("n" if numeric else "", self.kind) if c)
        parts = [tag, 'scope="row"' if head else "", f'class="{classes}"' if classes else ""]
        if self.value is not None:
            parts.append(f'data-value="{self.value!r}"')
        if self.key:
            parts.append(f'data-key="{escape(self.key)}"')
        return f"<{' '.join(p for p in parts if p)}>{self.text if self.html else escape(self.text)}</{tag}>"


def table(
    name: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    sources: Sequence[str],
    *,
    sortable: bool = True,
    titled: bool = False,
) -> str:
    """A table, the first cell of each row its heading.

    Args:
        name: what it is, for those who hear the page, and if ``titled`` for all.
        columns: their headings.
        rows: cells, one per column.
        sources: files the numbers are from.
        sortable: by a click on a heading.
        titled: whether the name is shown, which tells tables of equal headings apart.
    """
    heads = "".join(
        f'<th scope="col"{" class=n" if c.numeric else ""}>'
        + (f'<button type="button">{escape(c.name)}</button>' if sortable else escape(c.name))
        + "</th>"
        for c in columns
    )
    body = "\n".join(
        "<tr>"
        + "".join(cell.to_html(c.numeric, i == 0) for i, (c, cell) in enumerate(zip(columns, row, strict=True)))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{escape(name)}">'
        f"<table{' class=sortable' if sortable else ''}>"
        f"<caption{'' if titled else ' class=unseen'}>{escape(name)}</caption>"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table>"
        f'</div>\n<p class="source">From {_files(sources)}</p>'
    )


def draw_table(drawn: Table, sources: Sequence[str]) -> str:
    """A :class:`~commonground.table.Table` as HTML; a column with a number in it is set as numbers.

    Args:
        drawn: the table; its title is for those who hear the page.
        sources: files the numbers are from.
    """

    def numeric(name: str) -> bool:
        values = (row.get(name) for row in drawn.rows)
        return any(number(value) is not None or isinstance(value, Mapping) for value in values)

    heads = [name.replace("_", " ") for name in drawn.names]
    columns = [
        Column(head[:1].upper() + head[1:], numeric(name)) for head, name in zip(heads, drawn.names, strict=True)
    ]
    cells = [
        measured_cells([row.get(name) for row in drawn.rows], [f"[{index}].{name}" for index in range(len(drawn.rows))])
        for name in drawn.names
    ]
    return table(drawn.title, columns, list(zip(*cells, strict=True)), sources)


def measured_cell(value: Any, key: str = "") -> Cell:
    """A value whose unit the words beside it know: a number, a mean with its deviation, a truth value or a text."""
    return measured_cells([value], [key])[0]


def measured_cells(values: Sequence[Any], keys: Sequence[str]) -> list[Cell]:
    """A column of such values, with their keys: its numbers have equally many decimals where that hides nothing."""
    means = [value.get("mean") if isinstance(value, Mapping) else value for value in values]
    stds = [value.get("std") if isinstance(value, Mapping) else None for value in values]
    return list(map(_measured_cell, values, keys, show_alike(means), show_alike(stds)))


def _measured_cell(value: Any, key: str, mean: str, std: str) -> Cell:
    if isinstance(value, bool):
        return Cell("✓" if value else "✗", kind="yes" if value else "no")
    if isinstance(value, Mapping):
        text = mean if number(value.get("std")) is None else f"{mean} ± {std}"
        return Cell(text, number(value.get("mean")), f"{key}.mean" if key else "")
    count = number(value)
    text = mean if count is not None else "–" if value is None else str(value)
    return Cell(text, count, key)


def _files(sources: Sequence[str]) -> str:
    return ", ".join(f"<code>{escape(source)}</code>" for source in sources)


class Page:
    """A page as it grows, section by section.

    Args:
        folder: where ``report.html`` and ``figures/`` go.
        title: its heading.
        subtitle: one sentence under it.
        name: of the page's file.
        wide: whether its tables need more than a page's usual width.
    """

    def __init__(self, folder: Path, title: str, subtitle: str, name: str = "report.html", wide: bool = False) -> None:
        self.folder, self.title, self.subtitle, self.name, self.wide = folder, title, subtitle, name, wide
        self._parts: list[str] = []
        self._sections = 0
        self._drawings: dict[str, Drawing] = {}

    @property
    def figure_names(self) -> set[str]:
        """The figures so far, by the stem of their files."""
        return set(self._drawings)

    def section(self, heading: str, lead: str = "") -> None:
        """Begin a section, with one sentence that says what it is."""
        name, self._sections = f"section-{self._sections + 1}", self._sections + 1
        begin = "</section>\n" if self._sections > 1 else ""
        begin += f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(heading)}</h2>'
        self._parts.append(begin + (f'<p class="lead">{escape(lead)}</p>' if lead else ""))

    def add(self, markup: str) -> None:
        """Append markup."""
        self._parts.append(markup)

    def note(self, text: str) -> None:
        """Append a remark that must not be overlooked."""
        self.add(f'<p class="note">{escape(text)}</p>')

    def tiles(self, tiles: Sequence[tuple[str, str, str]]) -> None:
        """The figures to remember: name, value, explanation."""
        cells = "".join(
            f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(more)}</span></div>'
            for name, value, more in tiles
        )
        self.add(f'<div class="tiles">{cells}</div>')

    def figures(self, charts: Sequence[Chart]) -> None:
        """Draw charts and lay them side by side."""
        if not charts:
            return
        for chart in charts:
            self._drawings[chart.name] = draw(chart)
        self.add('<div class="figures">' + "\n".join(self._figure(chart) for chart in charts) + "</div>")

    def _figure(self, chart: Chart) -> str:
        drawing, name = self._drawings[chart.name], escape(chart.name)
        files = (("PNG", "png"), ("CSV", "csv"))
        links = ", ".join(
            f'<a href="figures/{name}.{end}" aria-label="{escape(chart.title)} as {kind}">{kind}</a>'
            for kind, end in files
        )
        keys = "".join(
            f'<li><svg viewBox="0 0 26 8" aria-hidden="true"><path d="M1 4H25" fill="none" stroke-width="3" '
            f'stroke="var(--s{color % 7})" stroke-dasharray="{" ".join(f"{d * 2:g}" for d in dash(color))}"/></svg>'
            f"{escape(label)}</li>"
            for label, color in chart.legend
        )
        return (
            f'<figure class="card" id="figure-{name}" aria-labelledby="title-{name}">'
            f'<h3 id="title-{name}">{escape(chart.title)}</h3>'
            f"<p>{escape(chart.reads)}</p>"
            f'<div class="plot">{drawing.svg}<div class="tip" role="status" hidden></div>'
            f'<script type="application/json">{drawing.hover}</script></div>'
            + (f'<ul class="keys">{keys}</ul>' if keys else "")
            + f"<figcaption>From {_files(chart.sources)} · as {links}</figcaption></figure>"
        )

    def picture(self, path: Path) -> str:
        """A PNG that is already in the folder, as a figure that carries it along."""
        data = base64.b64encode(path.read_bytes()).decode()
        name = path.relative_to(self.folder).as_posix()
        beside = path.with_suffix(".csv")
        more = (
            f", values in <code>{escape(beside.relative_to(self.folder).as_posix())}</code>" if beside.is_file() else ""
        )
        title = escape(path.stem.replace("-", " ").replace("_", " "))
        return (
            f'<figure class="card"><h3>{title}</h3><img alt="{title}" src="data:image/png;base64,{data}">'
            f"<figcaption>From <code>{escape(name)}</code>{more}</figcaption></figure>"
        )

    def write(self) -> Path:
        """Write the figures, then the page.

        Raises:
            RunError: the folder cannot be written.
        """
        target = self.folder / self.name
        try:
            for name, drawing in self._drawings.items():
                write_atomically(self.folder / "figures" / f"{name}.png", drawing.png)
                write_atomically(self.folder / "figures" / f"{name}.csv", drawing.csv)
            write_atomically(target, visible(self._html()))
        except OSError as error:
            raise RunError(f"the report '{target}' cannot be written: {reason(error, target)}") from None
        return target

    def _html(self) -> str:
        made_by = version("commonground")
        figures = " Figures are in <code>figures/</code>." if self._drawings else ""
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; img-src data:\">\n"
            f'<meta name="generator" content="CommonGround {escape(made_by)}">\n<link rel="icon" href="data:,">\n'
            f"<title>{escape(self.title)}</title>\n<style>\n{_colors()}{_asset('page.css')}</style>\n</head>\n"
            f"<body{' class=wide' if self.wide else ''}>\n"
            '<a class="skip" href="#results">Skip to the results</a>\n'
            f"<header><h1>{escape(self.title)}</h1><p>{escape(self.subtitle)}</p>"
            '<button id="theme" type="button" aria-label="Dark theme">Dark</button></header>\n'
            '<main id="results">\n' + "\n".join(self._parts) + f"{'</section>' if self._sections else ''}\n</main>\n"
            f"<footer>Written by CommonGround {escape(made_by)} from the files of this folder; every table and "
            f"figure names its own.{figures}</footer>\n"
            f"<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
        )


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")


def _colors() -> str:
    light, dark = (f"--page:{PAGE[dark]};{css_variables(dark)}" for dark in (False, True))
    image = "{filter:brightness(1.25)}"
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}"
        f":root:not([data-theme=light]) .plot image{image}}}\n"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f":root[data-theme=dark] .plot image{image}}}\n"
    )


def day(text: Any) -> str:
    """A date as people write it; what is none stays as it is."""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    return f"{when.day} {when:%B %Y}"
