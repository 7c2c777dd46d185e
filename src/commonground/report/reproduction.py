"""The page of a reproduction: a paper's claims beside what was measured."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from commonground.errors import RunError
from commonground.report.charts import Chart, Interval, IntervalChart, Line, LineChart
from commonground.report.compared import read_comparison
from commonground.report.comparison import add_comparison
from commonground.report.format import number, show_with_interval, slug
from commonground.report.page import Cell, Page, draw_table, measured_cell, table
from commonground.report.read import read_json
from commonground.report.result_tables import cells_to_typeset, copied, write_typeset
from commonground.table import Column, Table

__all__ = ["write_reproduction_report"]

ABOUT = "reproduction.json"
MOST_PICTURES, LARGEST_PICTURE = 12, 400_000


def write_reproduction_report(folder: str | Path) -> Path:
    """Write ``report.html`` and ``figures/`` into a reproduction's folder, from ``results.json`` and what is beside it;
    and, of a paper's table, ``table.tex`` and ``table.md``.

    Args:
        folder: of the reproduction; ``cells.json`` (a paper's table, a row per cell with ``paper`` and ``measured``),
            comparisons beneath and pictures in ``figures/`` are shown where there are any. ``reproduction.json``, which
            has all of it, is enough where the other files were left out.

    Returns:
        The path of the page.

    Raises:
        RunError: the folder holds no reproduction, a file is damaged, or the folder cannot be written.
    """
    folder = Path(folder)
    about = read_json(folder / ABOUT) if (folder / ABOUT).is_file() else {}
    claims, of_claims = _claims(folder, about)
    cells, of_cells = _cells(folder, about)
    sources = list(dict.fromkeys(str(c["source"]) for c in claims if c.get("source")))
    name = str(about.get("title") or folder.resolve().name.replace("_", " "))
    lead = sources[0] if len(sources) == 1 else "A paper's claims beside what was measured here"
    page = Page(folder, f"Reproduction: {name}", f"{lead.rstrip('.')}.")
    page.tiles(_tiles(claims))
    for remark in _remarks(about, filled=(folder / "cells.csv").is_file()):
        page.note(remark)
    pictures = _pictures(folder)  # before our own are written
    if cells:
        page.section("The paper's table", "Reported beside measured, cell by cell.")
        page.add(draw_table(Table.of("The paper's table", cells), [of_cells.file]))
        typeset = cells_to_typeset(cells, name)
        page.add(copied(typeset))
        write_typeset(typeset, folder)
        page.figures(_charts(cells, of_cells.file, "cells", "The paper's table"))
    counts = _counts(claims, {str(cell.get("method")) for cell in cells})
    if counts:
        page.section("Claims, counted", "How many of the claims that say the same of several settings hold.")
        page.add(draw_table(Table.of("Claims, counted", counts), [of_claims.file]))
    page.section("Claims", "What the paper says, what was measured here, and whether the claim holds.")
    page.add(_claim_table(claims, of_claims))
    page.figures(_charts(_shares(claims), of_claims.file, "claims", "Claims about a share"))
    curves = _curves(about)
    if curves:
        page.section("Measured", "The paper's figures as they come out here.")
        page.figures(curves)
    for title, rows in dict(about.get("tables") or {}).items():
        page.section(title[:1].upper() + title[1:])
        page.add(draw_table(Table.of(title, rows), [f"{slug(title)}.csv", ABOUT]))
    for one in sorted(folder.rglob("comparison.json")):
        comparison = read_comparison(one.parent)
        below = one.parent.relative_to(folder).as_posix()
        data = f"{comparison.entry.get('data', '')}, {below}".strip(", ")
        page.section(f"Comparison: {data}", f"{comparison.over[0].upper()}{comparison.over[1:]}.")
        add_comparison(page, comparison, f"{below.replace('/', '-')}-" if below != "." else "comparison-")
    pictures = [picture for picture in pictures if picture.stem not in page.figure_names]
    if pictures:
        page.section("Figures", "Drawn by the experiment itself.")
        page.add('<div class="figures">' + "".join(page.picture(picture) for picture in pictures) + "</div>")
    return page.write()


def _remarks(about: Mapping[str, Any], filled: bool) -> list[str]:
    """How it was done: what was reduced, the command, the machine and the minutes; of a table that is filled cell by
    cell, what was asked for last.
    """
    how = []
    if about.get("command"):
        versions = ", ".join(f"{k} {v}" for k, v in dict(about.get("versions") or {}).items())
        minutes = f"{about['minutes']} minutes on " if "minutes" in about and not filled else ""
        how = [f"{about['command']} ({minutes}{about.get('machine', 'an unnamed machine')}; {versions}; {ABOUT})"]
        if filled:
            how = [f"Asked for last: {how[0]}. cells.csv has the command and the minutes of every run."]
    return [*(str(remark) for remark in about.get("notes") or []), *how]


def _curves(about: Mapping[str, Any]) -> list[Chart]:
    """The experiment's own figures, as curves with their 95 % bands."""
    charts: list[Chart] = []
    for title, curve in dict(about.get("curves") or {}).items():
        lines = tuple(
            Line(label, line["x"], line["mean"], line.get("low"), line.get("high"), color=index)
            for index, (label, line) in enumerate(curve["lines"].items())
        )
        whole = all(float(x).is_integer() for line in lines for x in line.x)
        charts.append(
            LineChart(
                name=slug(title),
                title=f"{title[:1].upper()}{title[1:]}",
                reads=curve.get("reads") or "Lines are means, bands their 95 % intervals.",
                log_x=bool(curve.get("log_x")),
                log_y=bool(curve.get("log_y")),
                x_unit="integer" if whole else "number",
                y_unit="percent" if curve.get("percent", True) else "number",
                sources=(ABOUT,),
                lines=lines,
                x_label=curve["x"],
                y_label=curve["y"],
            )
        )
    return charts


def _tiles(claims: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    judged = [c["holds"] for c in claims if isinstance(c.get("holds"), bool)]
    tiles = []
    if judged:
        tiles.append(("Claims that hold", f"{sum(judged)} of {len(judged)}", "as judged from the measured values"))
    open_ = len(claims) - len(judged)
    if open_:
        tiles.append(("Open", str(open_), "claims whose interval leaves it open, or of too few seeds for one"))
    return tiles


def _counts(claims: Sequence[Mapping[str, Any]], methods: Collection[str]) -> list[dict[str, Any]]:
    """How many hold of the claims that say the same of several settings; none where few do.

    Args:
        claims: judged.
        methods: of the paper's table.
    """
    groups: dict[str, list[Any]] = {}
    for claim in claims:
        groups.setdefault(_said(str(claim["claim"]), methods), []).append(claim.get("holds"))
    if 2 * len(groups) > len(claims):
        return []
    return [
        {"claim": text, "settings": len(found), "hold": sum(h is True for h in found)}
        | {"do not": sum(h is False for h in found), "open": sum(not isinstance(h, bool) for h in found)}
        for text, found in groups.items()
    ]


def _said(claim: str, methods: Collection[str]) -> str:
    """What a claim says of one setting of several: that a method leads the others of a table's column, or what stands
    before a comma or colon outside of brackets.
    """
    for side, others in (("above", "the others"), ("below", "others")):
        rival = next((name for name in methods if f" {side} {name} on " in claim), None)
        if rival is not None:
            return claim.replace(f" {side} {rival} on ", f" {side} {others} on ")
    return re.split(r"[,:](?![^()]*\))", claim)[0]


def _claim_table(claims: Sequence[Mapping[str, Any]], place: _Place) -> str:
    # Where all are from one place the page's head names it.
    several = len({claim.get("source") for claim in claims}) > 1
    heads = ["Claim", "Holds", "Measured", "Range", "Paper", "Seeds", *(["Source"] if several else [])]
    numeric = {"Measured", "Range", *(["Paper"] if all(number(c.get("paper")) is not None for c in claims) else [])}
    columns = [Column(head, head in numeric) for head in heads]
    rows = []
    for index, claim in enumerate(claims):
        at = f"{place.key}[{index}]"
        low, high = number(claim.get("low")), number(claim.get("high"))
        seeds, holds = claim.get("seeds"), claim.get("holds")
        nothing = low is None or high is None or (low == high and seeds == 1)  # one seed has no range
        measured, least, most = show_with_interval(claim.get("measured"), *((None, None) if nothing else (low, high)))
        verdict = Cell("✓ holds", kind="yes") if holds is True else Cell("✗ does not", kind="no")
        rows.append(
            [
                Cell(str(claim["claim"]), kind="long"),
                verdict if isinstance(holds, bool) else Cell("open"),
                Cell(measured, number(claim.get("measured")), f"{at}.measured"),
                Cell("–" if nothing else f"{least} to {most}", low, f"{at}.low"),
                measured_cell(claim.get("paper"), f"{at}.paper"),
                Cell(", ".join(map(str, seeds)) if isinstance(seeds, list) else str(seeds or "–")),
                *([Cell(str(claim.get("source") or "–"), kind="how")] if several else []),
            ]
        )
    return table("Claims", columns, rows, [place.file])


class _Place(NamedTuple):
    """Where a list of rows stands: a file, and its key there where the file has more than it."""

    file: str
    key: str = ""


def _claims(folder: Path, about: Mapping[str, Any]) -> tuple[list[dict[str, Any]], _Place]:
    place = _Place("results.json") if (folder / "results.json").is_file() else _Place(ABOUT, "claims")
    claims = about.get("claims") if place.key else read_json(folder / place.file, list)
    if not isinstance(claims, list):
        raise RunError(f"'{folder / place.file}' is damaged: it has no list of claims")
    for index, claim in enumerate(claims, 1):
        if not isinstance(claim, dict) or "claim" not in claim:
            raise RunError(f"'{folder / place.file}' is damaged: entry {index} has no claim")
    return claims, place


def _cells(folder: Path, about: Mapping[str, Any]) -> tuple[list[dict[str, Any]], _Place]:
    path = folder / "cells.json"
    if not path.is_file():
        place, cells = _Place(ABOUT, "cells"), about.get("cells") or []
    else:
        place = _Place(path.name)
        try:
            cells = read_json(path, list)
        except RunError:
            cells = read_json(path).get("cells")  # an object with a list in it will do
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise RunError(f"'{folder / place.file}' is damaged: it should hold a list of objects, one per cell")
    return cells, place


def _shares(claims: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The claims about a share, which have a common axis. A claim's text says what is measured; from the values it
    cannot be told: a difference in percentage points, a slope or a rounding error may lie between 0 and 1 as well.
    """
    return [
        claim
        for claim in claims
        if re.search(r"\bshare of\b", str(claim["claim"]))
        and all(value is None or 0 <= value <= 1 for value in map(_mean, (claim.get("paper"), claim.get("measured"))))
    ]


def _charts(rows: Sequence[Mapping[str, Any]], source: str, name: str, title: str) -> list[Chart]:
    """Reported beside measured, where all are shares or all are percentages: others have no common axis."""
    intervals = []
    for index, row in enumerate(rows):
        paper, measured = (_mean(row.get(key)) for key in ("paper", "measured"))
        if paper is None or measured is None:
            continue
        words = [str(v) for k, v in row.items() if isinstance(v, str) and k not in ("source", "unit")]
        label = str(row.get("claim") or ", ".join(words) or index + 1)
        intervals.append(Interval(label, measured, number(row.get("low")), number(row.get("high")), paper, color=0))
    values = [v for i in intervals for v in (i.value, i.compared) if v is not None]
    shares = all(0 <= v <= 1 for v in values)
    percents = all(1 < v <= 100 for v in values)
    if not values or not (shares or percents):
        return []
    return [
        IntervalChart(
            name=name,
            title=f"{title}: paper and here",
            reads="Filled marks are what was measured here, bars its range where there is one, hollow diamonds what "
            "the paper reports.",
            sources=(source,),
            intervals=tuple(intervals[:40]),
            x_label="share" if shares else "percent",
            unit="percent" if shares else "number",
            compared="paper",
        )
    ]


def _mean(value: Any) -> float | None:
    return number(value.get("mean")) if isinstance(value, Mapping) else number(value)


def _pictures(folder: Path) -> list[Path]:
    """PNG files that the experiment has left in its folder or in ``figures/``."""
    found = sorted([*folder.glob("*.png"), *(folder / "figures").glob("*.png")])
    return [path for path in found if path.stat().st_size <= LARGEST_PICTURE][:MOST_PICTURES]
