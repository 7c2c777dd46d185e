"""What was measured, from the committed files below ``results/``."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from marks import folded, number, plain, table

from commonground.papers.summary import NAMES, ORDER, Results, Verdict, beside_print, gather

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SHOWN = 6  # claims that stand open; more are behind a click


@cache
def _results() -> Results:
    return gather(RESULTS)


def _places(paper: str) -> list[str]:
    """Folders of a paper's experiments."""
    abouts = _results().abouts
    found = [place for place, about in abouts.items() if str(about["experiment"]).startswith(f"{paper}-")]
    return sorted(found, key=lambda place: (str(abouts[place]["source"]), place))


def counts(paper: str = "") -> str:
    """How many claims of a paper (or of all) hold."""
    places = set(_places(paper)) if paper else set(_results().abouts)
    return _counted([verdict for verdict in _results().verdicts if verdict.place in places])


def _counted(verdicts: Sequence[Verdict]) -> str:
    of = {status: sum(v.status == status for v in verdicts) for status in ORDER}
    parts = [f"**{of['yes']} hold**", f"**{of['no']} do not**", f"**{of['open']} are open**"]
    parts += [f"{of['withdrawn']} are withdrawn"] if of["withdrawn"] else []
    return f"Of {len(verdicts)} claims judged, {', '.join(parts)}."


def claims(paper: str) -> str:
    """Every experiment of a paper: its claims with their verdicts, remarks, what was reduced, and its command."""
    return "\n\n".join(_experiment(place) for place in _places(paper))


def _experiment(place: str) -> str:
    results = _results()
    about = results.abouts[place]
    verdicts = [v for v in results.verdicts if v.place == place]
    title = f"### {about['source'].partition(' 2')[2][3:].lstrip(', ') or about['source']}: {plain(about['title'])}"
    how = f"Scale `{about['scale']}`, {_seeds(verdicts)}, {about['machine']}, {about.get('device', 'cpu')}."
    parts = [title, f"{_counted(verdicts)} {how}"]
    parts += [f"```sh\n{about['command']}\n```"]
    remark = results.remarks.get(place)
    parts += [remark.replace("\n### ", "\n#### ")] if remark else []
    if verdicts:
        shown = _table(verdicts)
        parts.append(shown if len(verdicts) <= SHOWN else folded(f"The {len(verdicts)} claims", shown))
    if about.get("notes"):
        parts.append(folded("What was reduced or chosen", "\n".join(f"- {plain(note)}" for note in about["notes"])))
    parts.append(f"Files: {_files(place)}.")
    return "\n\n".join(parts)


def _seeds(verdicts: Sequence[Verdict]) -> str:
    found = sorted({v.seeds for v in verdicts})
    if not found:
        return "no seeds"
    return f"{found[0]} seed{'s' if found[0] != 1 else ''}" if len(found) == 1 else f"{found[0]} to {found[-1]} seeds"


def _table(verdicts: Sequence[Verdict]) -> str:
    rows = [
        (f"**{NAMES[v.status]}**", plain(v.claim), plain("–" if v.paper is None else v.paper), _interval(v), v.seeds)
        for v in verdicts
    ]
    return table(("verdict", "claim", "paper", "measured (95 %)", "seeds"), rows, numeric=[4])


def _interval(verdict: Verdict) -> str | None:
    if verdict.measured is None:
        return None
    if verdict.seeds < 2 or verdict.low is None:
        return number(verdict.measured)
    return f"{number(verdict.measured)} ({number(verdict.low)} to {number(verdict.high)})"


def _files(place: str) -> str:
    names = ("claims.csv", "table.csv", "cells.csv", "reproduction.json")
    found = [name for name in names if (RESULTS / place / name).is_file()]
    return ", ".join(f"[{name}](../../results/{place}/{name})" for name in found)


def cells(paper: str) -> str:
    """The cells of a paper's tables and figures at their own scale: printed, measured, and how far apart."""
    results = _results()
    printed_tables = {place: (table, said) for place, table, said in beside_print(results)}
    parts = []
    for place in _places(paper):
        if place not in results.stores:
            continue
        about = results.abouts[place]
        heads = ("column", "method", "paper", "measured", "off by", "seeds")
        parts.append(f"**{about['source']}**: {about['title']}.")
        every = table(heads, map(_cell, about["cells"]), numeric=range(2, 6))
        if place in printed_tables:
            one, said = printed_tables[place]
            rows = [[row.get(name) for name in one.names] for row in one.rows]
            parts.append(table(one.names, rows, numeric=range(1, len(one.names))))
            parts.append(said)
            parts.append(folded(f"The {len(about['cells'])} cells, with intervals", every))
        else:
            parts.append(every)
        parts.append(f"From [cells.csv](../../results/{place}/cells.csv), whose lines name command, commit and device.")
    return "\n\n".join(parts) or "No cell of this paper's tables has been measured at its own scale yet."


def _cell(cell: dict[str, Any]) -> tuple[Any, ...]:
    off = None if cell["paper"] is None else f"{cell['measured'] - cell['paper']:+.2f}"
    measured = f"{cell['measured']:.2f}"
    if cell["low"] is not None:
        measured += f" ({cell['low']:.2f} to {cell['high']:.2f})"
    return plain(cell["column"]), plain(cell["method"]), cell["paper"], measured, off, cell["seeds"]


def remarks(folder: str, begins: str = "") -> str:
    """``NOTES.md`` of a folder below ``results/``, or those of its paragraphs that begin with a bold word."""
    text = _results().remarks[folder]
    if begins == "general":
        return "\n\n".join(part for part in text.split("\n\n") if not re.match(r"#|\*\*[^*]+\*\* \(`", part))
    if not begins:
        return re.sub(r"^### ", "#### ", text, flags=re.MULTILINE)
    found = [part for part in text.split("\n\n") if part.startswith(f"**{begins.replace('-', ' ')}")]
    if not found:
        raise ValueError(f"no paragraph of results/{folder}/NOTES.md begins with **{begins}")
    return "\n\n".join(found)


def printed(name: str) -> list[dict[str, str]]:
    """The rows of a committed CSV file below ``results/``."""
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
