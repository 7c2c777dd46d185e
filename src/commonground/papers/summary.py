"""All results below a folder: every claim with its verdict, every table's cells, on one page and in ``README.md``.

Both are generated from the files that experiments leave (``reproduction.json``, ``cells.csv``) and from ``NOTES.md``
beside them, which people write; nothing of it is edited by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commonground.engine.state.files import write_atomically
from commonground.errors import RunError
from commonground.papers.claims import FEWEST
from commonground.papers.experiment import experiments
from commonground.papers.other_seeds import read_other_seeds
from commonground.papers.tables.cells import CELLS, CellStore
from commonground.papers.tables.differences import FAR, differences_table, far_cells
from commonground.papers.tables.rerun_file import in_words, read_reruns
from commonground.papers.tables.side_by_side import about_readings, side_by_side
from commonground.report.format import FormattedFloat, show_with_interval
from commonground.report.read import read_json
from commonground.report.summary import write_summary_page
from commonground.table import Column, Table

__all__ = ["Results", "Verdict", "beside_print", "gather", "write_summary"]

REPRODUCTION, NOTES, README, DIFFERENCES = "reproduction.json", "NOTES.md", "README.md", "DIFFERENCES.md"
NAMES = {"no": "does not hold", "open": "open", "yes": "holds", "withdrawn": "withdrawn"}
ORDER = tuple(NAMES)
_ALWAYS = re.compile(r": (not )?contradicted in (\d+ of )?\d+ seeds")  # as claims.fraction ends its text


@dataclass(frozen=True)
class Verdict:
    """A claim of a paper, judged.

    Attributes:
        claim, source: of the paper.
        paper: what it prints, if anything.
        measured, low, high: ours with its 95 % interval.
        seeds: behind it.
        scale: ``paper`` or ``small``.
        status: ``yes``, ``no``, ``open``, or ``withdrawn``: judged otherwise at the paper's scale, which counts.
        place: folder of its files, below the summary's.
        set: what was set otherwise than the scale has it, in words.
        remark: what else differs between what is compared, if anything.
        name: the claim without how many seeds it was judged on, by which it is the same at another scale.
    """

    claim: str
    source: str
    paper: float | str | None
    measured: float | None
    low: float | None
    high: float | None
    seeds: int
    scale: str
    status: str
    place: str
    set: str = ""
    remark: str = ""
    name: str = ""


@dataclass(frozen=True)
class Results:
    """What lies below a folder.

    Attributes:
        folder: where.
        abouts: every ``reproduction.json``, by its folder's path below.
        verdicts: of all claims; what does not hold first, then open ones.
        remarks: ``NOTES.md``, by the path of its folder below (``""`` is the folder itself).
        stores: the cells of tables, by the path of their folder.
        reruns: lines of the cells that were measured again, by the path of their table's folder.
    """

    folder: Path
    abouts: dict[str, dict[str, Any]]
    verdicts: list[Verdict]
    remarks: dict[str, str]
    stores: dict[str, CellStore]
    reruns: dict[str, list[dict[str, str]]]

    def with_status(self, status: str) -> list[Verdict]:
        """The verdicts of a status."""
        return [verdict for verdict in self.verdicts if verdict.status == status]


def gather(folder: Path) -> Results:
    """Read all results below a folder.

    Raises:
        RunError: it holds none, or a file is damaged.
    """
    files = sorted(folder.rglob(REPRODUCTION))
    if not files:
        raise RunError(f"'{folder}' holds no results: no {REPRODUCTION} is below it")
    abouts = {file.parent.relative_to(folder).as_posix(): read_json(file) for file in files}
    verdicts = [_on_enough(v, about) for place, about in abouts.items() for v in _verdicts(place, about)]
    wavering = {place: read_other_seeds(folder / place) for place in abouts}
    verdicts = _withdrawn([_steady(v, wavering[v.place]) for v in verdicts])
    verdicts.sort(key=lambda v: (ORDER.index(v.status), v.source, v.place))
    remarks = {
        path.parent.relative_to(folder).as_posix().removeprefix("."): path.read_text("utf-8").strip()
        for path in sorted(folder.rglob(NOTES))
    }
    stores = {place: CellStore(folder / place) for place in abouts if (folder / place / CELLS).is_file()}
    reruns = {place: rows for place in stores if (rows := read_reruns(folder / place))}
    return Results(folder, abouts, verdicts, remarks, stores, reruns)


def _verdicts(place: str, about: dict[str, Any]) -> list[Verdict]:
    try:
        return [
            Verdict(
                claim["claim"],
                claim["source"],
                claim["paper"],
                claim["measured"],
                claim["low"],
                claim["high"],
                int(claim["seeds"]),
                str(about["scale"]),
                {True: "yes", False: "no", None: "open"}[claim["holds"]],
                place,
                _set(about),
                str(claim.get("remark", "")),
                _ALWAYS.sub("", claim["claim"]),
            )
            for claim in about["claims"]
        ]
    except (KeyError, TypeError, ValueError):
        raise RunError(f"'{place}/{REPRODUCTION}' is damaged: a claim lacks its figures") from None


def _set(about: dict[str, Any]) -> str:
    """What the command's ``--set`` changed of the scale's settings, behind the scale's name."""
    changed = about.get("set") or []
    return f", with {', '.join(changed)}" if changed else ""


def _on_enough(verdict: Verdict, about: dict[str, Any]) -> Verdict:
    """A claim about training is open on fewer than three seeds, whatever an earlier version said of it."""
    chosen = experiments.get(str(about.get("experiment")))
    proved = chosen is not None and chosen.float64  # the theory lab also checks what does not depend on a seed
    return verdict if verdict.seeds >= FEWEST or proved else replace(verdict, status="open")


def _steady(verdict: Verdict, wavering: dict[str, str]) -> Verdict:
    """A claim that other first seeds judge otherwise is open, and says so."""
    told = wavering.get(verdict.claim)
    return verdict if told is None else replace(verdict, status="open", claim=f"{verdict.claim} [{told}]")


def _withdrawn(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """A claim that the paper's own setting decides otherwise is withdrawn from the small one."""
    decided = {
        (v.source, v.name): v.status for v in verdicts if v.scale == "paper" and not v.set and v.status != "open"
    }
    return [
        replace(v, status="withdrawn")
        if v.scale != "paper" and decided.get((v.source, v.name), v.status) != v.status
        else v
        for v in verdicts
    ]


def write_summary(folder: Path) -> list[Path]:
    """Write ``summary.html``, ``README.md`` and, where tables of cells are below, ``DIFFERENCES.md`` beside them.

    Returns:
        The files.

    Raises:
        RunError: there are no results, a file is damaged, or the folder cannot be written.
    """
    results = gather(folder)
    _check_own(folder / README)
    tables = {title: table for title, table in _tables(results) if table.rows}
    written = [folder / README]
    try:
        write_atomically(folder / README, _readme(results, tables))
        for place in sorted({Path(place).parent for place in results.stores}):
            write_atomically(folder / place / DIFFERENCES, _differences(results, place))
            written.append(folder / place / DIFFERENCES)
    except OSError as error:
        raise RunError(f"'{folder}' cannot be written: {error.strerror}") from None
    lead = f"{_counts(results)} Every number is from the files named beside it."
    leads = {table.title: said for _, table, said in beside_print(results)}
    return [write_summary_page(folder, lead, tables, leads), *written]


def _check_own(readme: Path) -> None:
    """Refuse to write over a text that people have written.

    Raises:
        RunError: it is none of ours.
    """
    if readme.is_file() and "`commonground reproduce --summary" not in readme.read_text("utf-8", "replace"):
        raise RunError(f"'{readme}' is not one that --summary has written; move it, or name another folder")


# -- tables -----------------------------------------------------------------------------------------------------------


def _tables(results: Results) -> Iterable[tuple[str, Table]]:
    for status in ORDER:
        title = {"no": "What does not hold", "open": "Open", "yes": "What holds", "withdrawn": "Withdrawn"}[status]
        yield title, _claims(title, results.with_status(status))
    yield "Verdicts at both scales", _both(results.verdicts)
    yield from ((table.title, table) for _, table, _ in beside_print(results))
    yield "Cells of the papers' tables", _cells(results)
    yield "Cells measured again", _reruns(results)
    yield "Experiments", _experiments(results)


def _experiments(results: Results) -> Table:
    rows = []
    for place, about in results.abouts.items():
        own = [v for v in results.verdicts if v.place == place]
        rows.append(
            {
                "experiment": about["experiment"],
                "source": about["source"],
                "scale": about["scale"] + _set(about),
                "hold": sum(v.status == "yes" for v in own),
                "do not": sum(v.status == "no" for v in own),
                "open": sum(v.status == "open" for v in own),
                "seeds": _range(v.seeds for v in own),
                "minutes": _minutes(results, place),
                "device": about.get("device", "cpu"),
                "commit": (about.get("commit") or "–")[:7],
                "files": place,
            }
        )
    rows.sort(key=lambda row: (str(row["source"]), str(row["experiment"])))
    numeric = {"hold", "do not", "open", "minutes"}
    return Table("Experiments", tuple(Column(name, name in numeric) for name in rows[0]), rows)


def _minutes(results: Results, place: str) -> float:
    """Of an experiment; of a table the sum over its runs."""
    if place not in results.stores:
        return float(results.abouts[place].get("minutes", 0))
    runs = {cell.weights_sha256 or cell.key: cell.minutes for cell in results.stores[place].all()}
    return round(sum(runs.values()), 1)


def _range(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return "–" if not found else str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _claims(title: str, verdicts: Sequence[Verdict]) -> Table:
    names = ("claim", "paper", "measured", "95 %", "seeds", "scale", "source", "files")
    rows = [
        {
            "claim": f"{v.claim} ({v.remark})" if v.remark else v.claim,
            "paper": v.paper,
            **_measured(v.measured, v.low, v.high, v.seeds),
            "seeds": v.seeds,
            "scale": v.scale + v.set,
            "source": v.source,
            "files": v.place,
        }
        for v in verdicts
    ]
    return Table(title, tuple(Column(name, name in ("measured", "95 %", "seeds")) for name in names), rows)


def _both(verdicts: Sequence[Verdict]) -> Table:
    """Claims that were judged at both scales."""
    by_claim: dict[tuple[str, str], dict[str, Verdict]] = {}
    for v in verdicts:
        if not v.set:  # of other settings than the scale's
            by_claim.setdefault((v.source, v.name), {})[v.scale] = v
    rows = [
        {
            "claim": claim,
            "small": _status(scales["small"], bare=True),
            "paper's scale": _status(scales["paper"]),
            "source": source,
        }
        for (source, claim), scales in by_claim.items()
        if len(scales) == 2
    ]
    return Table("Verdicts at both scales", tuple(map(Column, ("claim", "small", "paper's scale", "source"))), rows)


def _status(v: Verdict, bare: bool = False) -> str:
    name = "other than at the paper's scale" if bare and v.status == "withdrawn" else NAMES[v.status]
    measured = _measured(v.measured, v.low, v.high, v.seeds)["measured"]
    return f"{name} ({measured}, {v.seeds} seed{'s' if v.seeds != 1 else ''})"


def _cells(results: Results) -> Table:
    names = ("source", "column", "method", "paper", "measured", "95 %", "off by", "seeds", "scale", "files")
    rows = []
    for place in results.stores:
        about = results.abouts[place]
        for cell in about["cells"]:
            measured = _measured(cell["measured"], cell["low"], cell["high"], cell["seeds"])
            off = None if cell["paper"] is None else cell["measured"] - cell["paper"]
            rows.append(
                {
                    "source": about["source"],
                    "column": cell["column"],
                    "method": cell["method"],
                    "paper": cell["paper"],
                    **measured,
                    "off by": None
                    if off is None
                    else FormattedFloat(off, f"{off:.{_decimals(measured['measured'])}f}"),
                    "seeds": cell["seeds"],
                    "scale": about["scale"] + _set(about),
                    "files": place,
                }
            )
    numeric = {"paper", "measured", "95 %", "off by", "seeds"}
    return Table("Cells of the papers' tables", tuple(Column(name, name in numeric) for name in names), rows)


def beside_print(results: Results) -> Iterable[tuple[str, Table, str]]:
    """Of every printed table with the papers' settings the path of its folder, the table in its own form with ours
    beside, and a sentence on what that is.
    """
    for place, store in results.stores.items():
        about = results.abouts[place]
        chosen = experiments.get(str(about["experiment"]))
        if chosen is None or chosen.table is None or not chosen.table.values or _set(about):
            continue
        scale = "" if about["scale"] == "paper" else f" (scale {about['scale']})"
        title = f"{about['source']}, as printed and as measured{scale}"
        table = chosen.table.at_scale(str(about["scale"]))
        yield place, side_by_side(title, table, store), about_readings(table)


def _reruns(results: Results) -> Table:
    rows = [
        {"source": results.abouts[place]["source"], **row, "files": place}
        for place, rows in results.reruns.items()
        for row in rows
    ]
    return Table.of("Cells measured again", rows)


def _measured(value: float | None, low: float | None, high: float | None, seeds: int) -> dict[str, Any]:
    """What was measured and its interval, in as many decimals as the interval gives meaning."""
    text, least, most = show_with_interval(value, *((None, None) if seeds < 2 else (low, high)))
    within = "one seed" if seeds < 2 else f"{least} to {most}"
    return {"measured": None if value is None else FormattedFloat(value, text), "95 %": within}


def _decimals(measured: FormattedFloat) -> int:
    return len(str(measured).partition(".")[2])


# -- texts ------------------------------------------------------------------------------------------------------------


def _counts(results: Results) -> str:
    of = {status: len(results.with_status(status)) for status in ORDER}
    text = f"{len(results.verdicts)} claims: {of['yes']} hold, {of['no']} do not, {of['open']} are open"
    text += f", {of['withdrawn']} are withdrawn." if of["withdrawn"] else "."
    again = [row for rows in results.reruns.values() for row in rows]
    return text + (f" Measured again, {in_words(again)}." if again else "")


HOW = """\
Generated by `commonground reproduce --summary {name}` from the files in this folder, never edited by hand; remarks are
those of the `NOTES.md` beside the results. The same as a page to sort: `summary.html`, which that command writes.

A claim *holds* if the 95 % interval of what was measured lies on the claimed side, *does not hold* if it lies on
the other, and is *open* otherwise, or where fewer than three seeds were measured, six where a median is judged. A
claim about every case holds if it is not contradicted in so many seeds, six or more, and one contradiction refutes
it. Intervals are over seeds unless a claim says otherwise. A claim of a table is what the table prints: where a
column says the opposite of what the text says of all, it is the column's order that holds or does not. Scale
`paper` is the paper's own setting; what `small` reduces is said in each `reproduction.json`. Where `paper` decides
a claim otherwise, also one that `small` left open, the verdict at scale `small` is withdrawn. A claim that was
judged from several first seeds (`other-seeds.csv`) and not alike from all is open, and says so.
Every experiment's folder has its command, machine, minutes and versions.
"""


def _readme(results: Results, tables: dict[str, Table]) -> str:
    parts = ["# Measured results", _counts(results), HOW.format(name=results.folder.name).strip()]
    own = results.remarks.get("")
    parts += [own] if own else []
    for title, table in tables.items():
        parts += [f"## {title}", _markdown(table)]
    remarks = {place: text for place, text in results.remarks.items() if place}
    if remarks:
        parts.append("## Remarks")
    for place, text in remarks.items():
        parts.append(text if text.startswith("#") else f"### {_title(results, place)}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def _title(results: Results, place: str) -> str:
    about = results.abouts.get(place)
    return place if about is None else str(about["source"])


def _markdown(table: Table) -> str:
    """A table; folders become links."""
    heads = "| " + " | ".join(table.names) + " |"
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    lines = [
        "| "
        + " | ".join(
            f"[{row[name].rsplit('/', 1)[-1]}]({row[name]}/)" if name == "files" else _cell(row.get(name))
            for name in table.names
        )
        + " |"
        for row in table.rows
    ]
    return "\n".join([heads, rule, *lines])


def _cell(value: Any) -> str:
    return "–" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def _differences(results: Results, place: Path) -> str:
    parts = [
        "# Differences, one change at a time",
        f"Cells further than {FAR:g} points from the printed value, and what was changed to find out why. A change "
        "moves a cell by the difference of the runs with it and those of the paper's setting, paired by seed. "
        "Generated with the summary; measured by `commonground reproduce TABLE --variants NAME,…`.",
    ]
    for folder, store in results.stores.items():
        about = results.abouts[folder]
        chosen = experiments.get(str(about["experiment"]))
        if Path(folder).parent != place or chosen is None or chosen.table is None or _set(about):
            continue  # cells of other settings than the paper's explain nothing of its values
        table = chosen.table.at_scale(str(about["scale"]))
        effects = differences_table(table, store)
        if not table.values and not effects.rows:
            continue  # a figure prints no values
        explored = {(row["column"], row["method"]) for row in effects.rows}
        rows = [
            {
                "column": column.label,
                "method": row.name,
                "paper": table.paper(row, column),
                "off by": round(off, 2),
                "explored": "below" if (column.label, row.name) in explored else "not yet",
            }
            for column, row, off in sorted(far_cells(table, store), key=lambda far: -abs(far[2]))
        ]
        parts.append(f"## {about['source']}")
        if table.values:
            parts.append(_markdown(Table.of("far", rows)) if rows else "No cell is further off.")
        if effects.rows:
            parts += ["### What moves them", _markdown(effects)]
    return "\n\n".join(parts) + "\n"
