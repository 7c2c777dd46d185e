"""The tables of a comparison's page: figures of merit, differences, costs, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from commonground.report.compared import ComparisonFiles, MethodFiles
from commonground.report.format import Unit, number, unit_of, unit_of_change
from commonground.report.page import Cell, escape, table
from commonground.table import Column
from commonground.tasks import Metric, Target

__all__ = ["cost_table", "difference_table", "headline_table", "metric_table", "rows_table", "settings_table"]


def _spreads(metric: Metric, methods: Sequence[MethodFiles], key: str, best: float | None = None) -> list[Cell]:
    """A column: a figure of every method, all in one notation."""
    cells = []
    texts = metric.spreads([{part: method.value(key, part) for part in ("mean", "std")} for method in methods])
    for index, (method, text) in enumerate(zip(methods, texts, strict=True)):
        mean = method.value(key)
        path = f"methods[{index}].{key}" + (".mean" if isinstance(method.entry.get(key), Mapping) else "")
        kind = "best" if mean is not None and mean == best else ""
        cells.append(Cell.of(mean, unit_of(metric), path, text=text.replace("-", "−"), kind=kind))
    return cells


def headline_table(comparison: ComparisonFiles, place: str) -> str:
    """The headline metric over clients, of the last rounds and of the global model; each column's best is bold, where
    it is the best of several.
    """
    headline, methods = comparison.headline, comparison.methods
    keys = {
        headline.personal: headline.title,
        "last10": "Last 10 rounds",
        headline.worst_tenth: "Worst tenth",
        headline.worst: "Worst client",
        headline.shared: f"Global {headline.name}",
    }
    best = {key: headline.best(m.value(key) for m in methods) for key in keys}
    keys = {key: name for key, name in keys.items() if best[key] is not None}
    columns = [Column("Method"), *(Column(f"{name}{headline.sign}", True) for name in keys.values())]
    # What all have alike is nobody's best.
    several = {key: best[key] if len({m.value(key) for m in methods} - {None}) > 1 else None for key in keys}
    cells = [_spreads(headline, methods, key, several[key]) for key in keys]
    rows = [[Cell(method.title), *own] for method, *own in zip(methods, *cells, strict=True)]
    name = "Accuracies" if headline.key == "accuracy" else headline.title
    return table(name, columns, rows, [f"{place}comparison.json"])


def metric_table(comparison: ComparisonFiles, place: str) -> str:
    """The task's other metrics, if it has any."""
    others = comparison.headline.others(comparison.methods[0].entry)
    if not others:
        return ""
    columns = [Column("Method"), *(Column(f"{metric.title}{metric.sign}", True) for metric in others)]
    cells = []
    for metric in others:
        values = [method.metric(metric.key) for method in comparison.methods]
        column = []
        for index, (value, text) in enumerate(zip(values, metric.spreads(values), strict=True)):
            key = f"methods[{index}].metrics.{metric.key}.mean"
            defined, clients = comparison.methods[index].clients(metric.key), number(comparison.entry.get("clients"))
            if defined is not None and clients is not None and defined < clients:
                text += f" ({defined:.4g} of {clients:g} clients)"
            column.append(Cell.of(value["mean"], unit_of(metric), key, text=text.replace("-", "−")))
        cells.append(column)
    rows = [[Cell(method.title), *own] for method, *own in zip(comparison.methods, *cells, strict=True)]
    return table("Other metrics, means over clients", columns, rows, [f"{place}comparison.json"], titled=True)


def rows_table(comparison: ComparisonFiles, place: str) -> str:
    """Every metric over all clients' rows as one set, as far as the file tells."""
    metrics = [comparison.headline, *comparison.headline.others(comparison.methods[0].entry)]
    told = [method.entry.get("over_rows") or {} for method in comparison.methods]
    metrics = [m for m in metrics if all(m.key in own for own in told)]
    if not metrics:
        return ""
    cells = []
    for m in metrics:
        keys = [f"methods[{index}].over_rows.{m.key}.mean" for index in range(len(told))]
        texts = [text.replace("-", "−") for text in m.spreads([own[m.key] for own in told])]
        found = zip(told, keys, texts, strict=True)
        cells.append([Cell.of(own[m.key]["mean"], unit_of(m), key, text=text) for own, key, text in found])
    columns = [Column("Method"), *(Column(f"{m.title}{m.sign}", True) for m in metrics)]
    rows = [[Cell(method.title), *own] for method, *own in zip(comparison.methods, *cells, strict=True)]
    return table("Over all rows of all clients as one set", columns, rows, [f"{place}comparison.json"], titled=True)


def difference_table(comparison: ComparisonFiles, place: str) -> str:
    """Differences to the reference, with their intervals and tests; nothing where there is no reference."""
    found = [(i, m, d) for i, m in enumerate(comparison.methods) if (d := m.entry.get("differences"))]
    if not found:
        return ""
    headline, unit = comparison.headline, unit_of_change(comparison.headline)
    about = ", points" if headline.percent else "" if headline.higher_is_better else " (below 0 is better)"
    units: list[tuple[str, str, Unit]] = [
        ("mean", f"Δ to {comparison.reference}{about}", unit),
        ("low", "95 % from", unit),
        ("high", "to", unit),
        ("p_clients", "p over clients", "p"),
        ("p_adjusted", "the same, Holm", "p"),
        ("p_seeds", "p over seeds", "p"),
    ]
    units = [unit for unit in units if any(number(d.get(unit[0])) is not None for _, _, d in found)]
    columns = [Column("Method"), *(Column(name, True) for _, name, _ in units)]
    rows = []
    for i, m, d in found:
        parts = ("mean", "low", "high")
        texts = dict(zip(parts, headline.changes([number(d.get(part)) for part in parts]), strict=True))
        cells = []
        for key, _, unit in units:
            text = texts[key].replace("-", "−") if key in texts else None
            cells.append(Cell.of(d.get(key), unit, f"methods[{i}].differences.{key}", text=text))
        rows.append([Cell(m.title), *cells])
    return table("Differences", columns, rows, [f"{place}comparison.json"], titled=True)


def cost_table(comparison: ComparisonFiles, place: str) -> str:
    """Bytes and seconds of a run, and what it costs to reach the target; nothing where none was measured."""
    costs: list[tuple[str, str, Unit]] = [
        ("bytes_up", "Sent by clients", "bytes"),
        ("bytes_down", "Sent by the server", "bytes"),
        ("seconds", "Time", "seconds"),
    ]
    costs = [cost for cost in costs if any(m.value(cost[0]) is not None for m in comparison.methods)]
    target = Target.of(comparison.entry)
    reached: list[tuple[str, str, Unit]] = []
    if target is not None:
        goal = f"to {target.short}"
        reached = [("rounds", f"Rounds {goal}", "number"), ("bytes", f"Bytes {goal}", "bytes"),
                   ("seconds", f"Time {goal}", "seconds")]  # fmt: skip
    if not costs and not reached:
        return ""
    columns = [Column("Method"), *(Column(name, True) for _, name, _ in [*costs, *reached])]
    rows = []
    goal_key = "" if target is None else target.key
    for index, method in enumerate(comparison.methods):
        where, to = f"methods[{index}]", method.entry.get(goal_key) or {}
        row = [Cell(method.title)]
        row += [Cell.of(method.value(key), unit, f"{where}.{key}") for key, _, unit in costs]
        cells = [Cell.of(to.get(key), unit, f"{where}.{goal_key}.{key}") for key, _, unit in reached]
        if cells and 0 < to.get("reached", 0) < comparison.seeds:
            cells[0] = replace(cells[0], text=f"{cells[0].text} ({to['reached']} of {comparison.seeds} seeds)")
        rows.append([*row, *cells])
    return table("Costs", columns, rows, [f"{place}comparison.json"], titled=True)


def settings_table(comparison: ComparisonFiles) -> str:
    """What the methods were run with, their folders, the command, the machine."""
    rows = []
    for method in comparison.methods:
        settings = method.entry.get("settings") or {}
        text = ", ".join(f"{key} {'auto' if value is None else value}" for key, value in settings.items())
        links = "; ".join(_link(comparison.folder, str(run)) for run in method.entry.get("runs") or [])
        rows.append([Cell(method.title), Cell(text or "–", kind="how"), Cell(links or "–", kind="how", html=True)])
    columns = [Column("Method"), Column("Settings"), Column("Runs")]
    parts = [table("Settings", columns, rows, ["comparison.json"], sortable=False)]
    if comparison.entry.get("command"):
        parts.insert(0, f"<p>Again: <code>{escape(str(comparison.entry['command']))}</code></p>")
    facts = {**(comparison.entry.get("machine") or {}), **(comparison.entry.get("versions") or {})}
    if facts:
        rows = [[Cell(str(key)), Cell(str(value), kind="how")] for key, value in facts.items()]
        parts.append(table("Machine", [Column("Machine"), Column("Value")], rows, ["comparison.json"], sortable=False))
    return "<br>".join(parts)


def _link(folder: Path, run: str) -> str:
    page = f"{run}/report.html"
    name = f"<code>{escape(run)}</code>"
    return f'<a href="{escape(quote(page))}">{name}</a>' if (folder / page).is_file() else name
