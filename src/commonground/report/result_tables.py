"""Tables of results to take into a paper or a repository, as LaTeX and Markdown, in files and on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commonground.access import reason
from commonground.engine.state.files import write_atomically
from commonground.errors import RunError
from commonground.report.compared import ComparisonFiles, MethodFiles
from commonground.report.format import number, show
from commonground.report.page import escape, measured_cell
from commonground.report.typeset import TypesetTable

__all__ = ["cells_to_typeset", "comparison_to_typeset", "copied", "metrics_to_typeset", "write_typeset"]


def comparison_to_typeset(comparison: ComparisonFiles) -> TypesetTable:
    """The methods with their figures (± one standard deviation over seeds) and their differences to the reference."""
    headline, entry = comparison.headline, comparison.entry
    keys = {
        headline.personal: headline.title,
        headline.worst_tenth: "Worst tenth",
        headline.shared: f"Global {headline.name}",
    }
    best = {key: methods for key in keys if (methods := comparison.best(key))}
    keys = {key: name for key, name in keys.items() if key in best}
    # What all have alike is nobody's best.
    told = {key for key in keys if sum(m.value(key) is not None for m in comparison.methods) > len(best[key])}
    compared = any(method.entry.get("differences") for method in comparison.methods)
    heads = ["Method", *(f"{name}{headline.sign}" for name in keys.values())]
    heads += [f"Δ to {comparison.reference} [95 %]", "p (Holm)"] if compared else []
    bold, rows = set[tuple[int, int]](), []
    methods = comparison.methods
    figures = [headline.spreads([_figure(method, key) for method in methods]) for key in keys]
    for index, (method, *own) in enumerate(zip(methods, *figures, strict=True)):
        own = [text.replace("-", "−") for text in own]
        bold |= {(index, place) for place, key in enumerate(keys, 1) if key in told and method in best[key]}
        rows.append([method.title, *own, *(_difference(comparison, method) if compared else [])])
    over = f"{headline.title} ({headline.better} is better): mean over clients, {_spread(comparison)}"
    worst = f"worst tenth: {headline.percentile} over clients"
    gone = "".join(f" {one['title']} diverged (seed {one['seed']})." for one in entry.get("diverged", []))
    delta = "; Δ with the 95 % bootstrap interval of its mean over pairs of one client and seed, p by Wilcoxon, Holm"
    caption = f"{_what(comparison)}. {over}; {worst}{delta if compared else ''}.{gone}"
    return TypesetTable(caption, heads, rows, frozenset(bold))


def metrics_to_typeset(comparison: ComparisonFiles) -> TypesetTable | None:
    """The methods with the task's other metrics, as a table of its own: beside the first it would be wider than a page.
    None where there are none.
    """
    methods = comparison.methods
    others = comparison.headline.others(methods[0].entry)
    if not others:
        return None
    figures = [metric.spreads([method.metric(metric.key) for method in methods]) for metric in others]
    rows = [[method.title, *(text.replace("-", "−") for text in own)]
            for method, *own in zip(methods, *figures, strict=True)]  # fmt: skip
    caption = f"{_what(comparison)}. Means over clients, {_spread(comparison)}."
    return TypesetTable(caption, ["Method", *(f"{metric.title}{metric.sign}" for metric in others)], rows)


def _what(comparison: ComparisonFiles) -> str:
    """What was compared, for a caption."""
    entry = comparison.entry
    clients = f"{entry['clients']:,} clients" if number(entry.get("clients")) else ""
    return ", ".join(fact for fact in (str(entry.get("data", "")), clients, comparison.rounds) if fact)


def _spread(comparison: ComparisonFiles) -> str:
    return f"mean ± standard deviation over {comparison.seeds} seeds" if comparison.seeds > 1 else "one seed"


def _figure(method: MethodFiles, key: str) -> dict[str, float | None]:
    return {part: method.value(key, part) for part in ("mean", "std")}


def _difference(comparison: ComparisonFiles, method: MethodFiles) -> list[str]:
    """The difference with its interval, and its p; dashes for the reference."""
    found = method.entry.get("differences")
    if not found:
        return ["–", "–"]
    mean, low, high = comparison.headline.changes([number(found.get(part)) for part in ("mean", "low", "high")])
    between = "" if number(found.get("low")) is None else f" [{low}, {high}]"
    return [f"{mean}{between}".replace("-", "−"), show(found.get("p_adjusted"), "p")]


def cells_to_typeset(cells: Sequence[Mapping[str, Any]], title: str) -> TypesetTable:
    """A paper's table beside ours: a row per method, and for each of its columns the paper's number and ours.

    Args:
        cells: with ``method``, ``column``, ``paper``, ``measured`` and, where they are known, ``low`` and ``high``.
            Cells of other kinds are a row each.
        title: for the caption.
    """
    known = all({"method", "column", "paper", "measured"} <= set(cell) for cell in cells)
    places = [(str(cell.get("method")), str(cell.get("column"))) for cell in cells]
    if not known or len(set(places)) < len(places):
        names = list(dict.fromkeys(key for cell in cells for key in cell))
        rows = [[measured_cell(cell.get(name)).text for name in names] for cell in cells]
        return TypesetTable(f"{title}.", names, rows)
    columns = list(dict.fromkeys(column for _, column in places))
    at = dict(zip(places, cells, strict=True))
    heads = ["Method", *(head for column in columns for head in (f"{column}: paper", "here [95 %]"))]
    rows = []
    for method in dict.fromkeys(method for method, _ in places):
        row = [method]
        for column in columns:
            cell = at.get((method, column), {})
            row += [_rounded(cell.get("paper")), _measured(cell)]
        rows.append(row)
    return TypesetTable(f"{title}: reported beside measured, with the 95 % interval.", heads, rows)


def _rounded(value: Any) -> str:
    count = number(value)
    return measured_cell(value).text if count is None else f"{count:.1f}" if abs(count) > 1 else show(count)


def _measured(cell: Mapping[str, Any]) -> str:
    low, high = number(cell.get("low")), number(cell.get("high"))
    between = "" if low is None or high is None else f" [{_rounded(low)}, {_rounded(high)}]"
    return f"{_rounded(cell.get('measured'))}{between}"


def write_typeset(table: TypesetTable, folder: Path, name: str = "table") -> None:
    """Write a table as LaTeX and as Markdown.

    Args:
        table: which.
        folder: where to.
        name: of both files, without their endings.

    Raises:
        RunError: the folder cannot be written.
    """
    for file, text in ((f"{name}.tex", table.latex()), (f"{name}.md", table.markdown())):
        try:
            write_atomically(folder / file, text)
        except OSError as error:
            raise RunError(f"'{folder / file}' cannot be written: {reason(error, folder / file)}") from None


def copied(table: TypesetTable) -> str:
    """Both forms for the page, folded, each with a button that copies it."""
    parts = []
    for name, text in (("LaTeX", table.latex()), ("Markdown", table.markdown())):
        parts.append(
            f'<details class="copy"><summary>As {name}</summary><button type="button">Copy {name}</button> '
            f'<span role="status"></span><pre tabindex="0" aria-label="The table as {name}">{escape(text)}</pre>'
            "</details>"
        )
    return f'<div class="copies">{"".join(parts)}</div>'
