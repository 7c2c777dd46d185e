"""The page of a comparison: several methods, each with several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from commonground.report.compared import ComparisonFiles, MethodFiles, read_comparison
from commonground.report.comparison_charts import comparison_charts
from commonground.report.comparison_tables import (
    cost_table,
    difference_table,
    headline_table,
    metric_table,
    rows_table,
    settings_table,
)
from commonground.report.format import number, show, unit_of
from commonground.report.gains import Gains, between_runs, gain_chart, gain_table
from commonground.report.page import Page, escape
from commonground.report.result_tables import comparison_to_typeset, copied, metrics_to_typeset, write_typeset
from commonground.report.tuning import tuning_table

__all__ = ["add_comparison", "write_comparison_report"]


def write_comparison_report(folder: str | Path) -> Path:
    """Write ``report.html`` and ``figures/`` into a comparison's folder, from ``comparison.json`` and the runs beneath,
    the table of results as ``table.tex`` and ``table.md``, and of the task's other metrics as ``metrics.tex`` and
    ``metrics.md``.

    Args:
        folder: of the comparison.

    Returns:
        The path of the page.

    Raises:
        RunError: the folder holds no comparison, a file is damaged, or the folder cannot be written.
    """
    comparison = read_comparison(Path(folder))
    entry, methods, headline = comparison.entry, comparison.methods, comparison.headline
    names = [m.title for m in methods]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    title = f"{listed} on {entry.get('data', 'unknown data')}"
    if len(title) > 70:
        title = f"{len(methods)} methods on {entry.get('data', 'unknown data')}"
    seeds = entry.get("seeds") or []
    facts = [
        f"{entry['clients']:,} clients" if number(entry.get("clients")) else "",
        comparison.rounds,
        f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}" if seeds else "",
    ]
    same = "the same splits, starts and client samples for every method"
    page = Page(comparison.folder, title, f"{', '.join(f for f in facts if f)}; {same}.")
    page.tiles(_tiles(comparison))
    figures = "Accuracies" if headline.key == "accuracy" else "Figures"
    page.section(
        "Results", f"{figures} are means over clients, each tested on its own test samples {comparison.judged}."
    )
    add_comparison(page, comparison)
    page.section("Settings and machine", "What the methods were run with, and the folder of each run.")
    page.add(settings_table(comparison))
    write_typeset(comparison_to_typeset(comparison), comparison.folder)
    if (others := metrics_to_typeset(comparison)) is not None:
        write_typeset(others, comparison.folder, "metrics")
    return page.write()


def add_comparison(page: Page, comparison: ComparisonFiles, prefix: str = "") -> None:
    """Append a comparison's tables, remarks and figures to a page.

    Args:
        page: in the comparison's folder or in one above it.
        comparison: what to show.
        prefix: of the figures' names.
    """
    below = comparison.folder.relative_to(page.folder).as_posix()
    place = "" if below == "." else f"{below}/"
    page.add(headline_table(comparison, place))
    for one in comparison.entry.get("diverged", []):
        page.note(f"{one['title']} diverged with seed {one['seed']} and has no figures.")
    page.add(copied(comparison_to_typeset(comparison)))
    page.add(metric_table(comparison, place))
    if (others := metrics_to_typeset(comparison)) is not None:
        page.add(copied(others))
    page.add(rows_table(comparison, place))
    page.add(difference_table(comparison, place))
    page.add(cost_table(comparison, place))
    page.add(tuning_table(comparison.entry, comparison.headline, place))
    notes = [str(note) for note in comparison.entry.get("notes") or []]
    if notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in notes)
        page.add(f'<details open><summary>What each number is</summary><ul class="source">{items}</ul></details>')
    for run in comparison.missing:
        page.note(f"The run '{run}' is not in this folder, so the figures are without it.")
    gains = _gains(comparison, place)
    charts = list(comparison_charts(comparison, place, prefix))
    page.figures(charts if gains is None else [*charts, gain_chart(gains, f"{prefix}gains")])
    if gains is not None:
        page.note(gains.sentence)
        page.add(gain_table(gains))


def _gains(comparison: ComparisonFiles, place: str) -> Gains | None:
    """Clients of the best method against themselves with Local Only, or with whatever else there is."""
    if comparison.contrast is None:
        return None
    own, other = comparison.contrast
    theirs = {run.summary.get("seed"): run for run in other.runs}
    pairs = [(run, theirs[seed]) for run in own.runs if (seed := run.summary.get("seed")) in theirs]
    if not pairs:
        return None
    source, same = f"{place}*/seed-*/clients.csv", comparison.entry.get("same_clients")
    return between_runs(comparison.headline, pairs, (own.title, other.title), source, same)


def _tiles(comparison: ComparisonFiles) -> list[tuple[str, str, str]]:
    headline, unit = comparison.headline, unit_of(comparison.headline)
    tiles = []
    if best := comparison.best(headline.personal):
        value = {part: best[0].value(headline.personal, part) for part in ("mean", "std")}
        _, sign, spread = headline.spread(value).partition(" ± ")
        text = show(value["mean"], unit)
        tiles.append((f"Best {headline.name}", text, f"{_named(best)}, {comparison.over}{sign}{spread}"))
    if worst := comparison.best(headline.worst_tenth):
        text = show(worst[0].value(headline.worst_tenth), unit)
        tiles.append(("Best worst tenth", text, f"{_named(worst)}, {headline.percentile}"))
    traffic = [m for m in comparison.methods if m.value("bytes_up")]
    if traffic:
        least = min(m.value("bytes_up") or 0.0 for m in traffic)
        whose = _named([m for m in traffic if m.value("bytes_up") == least])
        tiles.append(("Least traffic", show(least, "bytes"), f"{whose}, sent by all clients"))
    return tiles


def _named(methods: Sequence[MethodFiles]) -> str:
    """Those that share the first place."""
    return f"{len(methods)} of the methods" if len(methods) > 2 else " and ".join(method.title for method in methods)
