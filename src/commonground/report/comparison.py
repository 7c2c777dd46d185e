"""The page of a comparison: several methods, each with several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from commonground.errors import RunError
from commonground.report.charts import Chart, Interval, IntervalChart, Line, LineChart
from commonground.report.format import Unit, number, show, unit_of, unit_of_change
from commonground.report.metrics import extra_metrics
from commonground.report.page import Cell, Page, escape, table
from commonground.report.read import RunFiles, algorithm_title, headline_of, read_json, read_run
from commonground.report.run import file_name, split_chart, splits
from commonground.report.tuning import tuning_table
from commonground.table import Column
from commonground.tasks import Headline, Metric

__all__ = ["Comparison", "add_comparison", "read_comparison", "write_comparison_report"]

Curve = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Method:
    """One method of a comparison.

    Attributes:
        title: for people.
        entry: what ``comparison.json`` says of it.
        runs: the runs whose folders are here.
        color: number of its colour, the same in every figure.
    """

    title: str
    entry: Mapping[str, Any] = field(repr=False)
    runs: list[RunFiles] = field(repr=False)
    color: int

    def value(self, key: str, part: str = "mean") -> float | None:
        """A figure over seeds; one without a spread is its own mean."""
        value = self.entry.get(key)
        if isinstance(value, Mapping):
            return number(value.get(part))
        return number(value) if part == "mean" else None


@dataclass(frozen=True)
class Comparison:
    """A comparison as read from its folder; ``missing`` are runs it names that are not here."""

    folder: Path
    headline: Headline
    entry: Mapping[str, Any] = field(repr=False)
    methods: list[Method] = field(repr=False)
    missing: list[str] = field(repr=False)

    @property
    def seeds(self) -> int:
        """How many."""
        return len(self.entry.get("seeds") or [0])

    @property
    def over(self) -> str:
        """What a mean is over, for a sentence."""
        return f"mean over {self.seeds} seeds" if self.seeds > 1 else "one seed"


def read_comparison(folder: Path) -> Comparison:
    """Read ``comparison.json`` and the runs beneath.

    Raises:
        RunError: it is missing or damaged, or a run is.
    """
    path = folder / "comparison.json"
    entry = read_json(path)
    listed = entry.get("methods")
    if not isinstance(listed, list) or not listed:
        raise RunError(f"'{path}' is damaged: it should hold a list of methods")
    headline = headline_of(entry, path)
    methods, missing = [], []
    for index, one in enumerate(listed):
        name = one.get("title") or one.get("algorithm") if isinstance(one, dict) else None
        if not name or not isinstance(one.get(headline.personal), dict):
            raise RunError(f"'{path}' is damaged: method {index + 1} should have a title and a {headline.personal}")
        runs = []
        for run in one.get("runs") or []:
            if (folder / str(run) / "summary.json").is_file():
                runs.append(read_run(folder / str(run)))
            else:
                missing.append(str(run))
        methods.append(Method(str(one.get("title") or algorithm_title(str(name))), one, runs, index))
    return Comparison(folder, headline, entry, methods, missing)


def write_comparison_report(folder: str | Path) -> Path:
    """Write ``report.html`` and ``figures/`` into a comparison's folder, from ``comparison.json`` and the runs beneath.

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
        f"{entry['rounds']:,} rounds" if number(entry.get("rounds")) else "",
        f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}" if seeds else "",
    ]
    same = "the same splits, starts and client samples for every method"
    page = Page(comparison.folder, title, f"{', '.join(f for f in facts if f)}; {same}.")
    page.tiles(_tiles(comparison))
    figures = "Accuracies" if headline.key == "accuracy" else "Figures"
    page.section(
        "Results", f"{figures} are means over clients, each tested on its own test samples after the last round."
    )
    add_comparison(page, comparison)
    page.section("Settings and machine", "What the methods were run with, and the folder of each run.")
    page.add(_settings(comparison))
    return page.write()


def add_comparison(page: Page, comparison: Comparison, prefix: str = "") -> None:
    """Append a comparison's tables, remarks and figures to a page.

    Args:
        page: in the comparison's folder or in one above it.
        comparison: what to show.
        prefix: of the figures' names.
    """
    below = comparison.folder.relative_to(page.folder).as_posix()
    place = "" if below == "." else f"{below}/"
    page.add(_headline_table(comparison, place))
    page.add(_metric_table(comparison, place))
    page.add(_difference_table(comparison, place))
    page.add(_cost_table(comparison, place))
    page.add(tuning_table(comparison.entry, comparison.headline, place))
    notes = [str(note) for note in comparison.entry.get("notes") or []]
    if notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in notes)
        page.add(f'<details open><summary>What each number is</summary><ul class="source">{items}</ul></details>')
    for run in comparison.missing:
        page.note(f"The run '{run}' is not in this folder, so the figures are without it.")
    page.figures(list(_charts(comparison, place, prefix)))


def _best(comparison: Comparison, key: str) -> Method | None:
    """The method that is best in a figure; the first of equally good ones."""
    best = comparison.headline.best(method.value(key) for method in comparison.methods)
    return next((method for method in comparison.methods if method.value(key) == best is not None), None)


def _tiles(comparison: Comparison) -> list[tuple[str, str, str]]:
    headline, unit = comparison.headline, unit_of(comparison.headline)
    tiles = []
    if (best := _best(comparison, headline.personal)) is not None:
        value = {part: best.value(headline.personal, part) for part in ("mean", "std")}
        _, sign, spread = headline.spread(value).partition(" ± ")
        text = show(value["mean"], unit)
        tiles.append((f"Best {headline.name}", text, f"{best.title}, {comparison.over}{sign}{spread}"))
    if (worst := _best(comparison, headline.worst_tenth)) is not None:
        text = show(worst.value(headline.worst_tenth), unit)
        tiles.append(("Best worst tenth", text, f"{worst.title}, {headline.percentile}"))
    traffic = [m for m in comparison.methods if m.value("bytes_up")]
    if traffic:
        least = min(traffic, key=lambda m: m.value("bytes_up") or 0.0)
        tiles.append(("Least traffic", show(least.value("bytes_up"), "bytes"), f"{least.title}, sent by all clients"))
    return tiles


# -- tables -----------------------------------------------------------------------------------------------------


def _spread(metric: Metric, method: Method, index: int, key: str, best: float | None = None) -> Cell:
    mean, std = method.value(key), method.value(key, "std")
    text = None if mean is None else metric.spread({"mean": mean, "std": std}).replace("-", "−")
    path = f"methods[{index}].{key}" + (".mean" if isinstance(method.entry.get(key), Mapping) else "")
    kind = "best" if mean is not None and mean == best else ""
    return Cell.of(mean, unit_of(metric), path, text=text, kind=kind)


def _headline_table(comparison: Comparison, place: str) -> str:
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
    rows = [
        [Cell(method.title), *(_spread(headline, method, index, key, best[key]) for key in keys)]
        for index, method in enumerate(methods)
    ]
    name = "Accuracies" if headline.key == "accuracy" else headline.title
    return table(name, columns, rows, [f"{place}comparison.json"])


def _metric_table(comparison: Comparison, place: str) -> str:
    """The task's other metrics, if it has any."""
    others = comparison.headline.others(comparison.methods[0].entry)
    if not others:
        return ""
    columns = [Column("Method"), *(Column(f"{metric.title}{metric.sign}", True) for metric in others)]
    rows = []
    for index, method in enumerate(comparison.methods):
        values = method.entry.get("metrics") or {}
        cells = []
        for metric in others:
            value = values.get(metric.key) or {"mean": None, "std": None}
            key = f"methods[{index}].metrics.{metric.key}.mean"
            cells.append(Cell.of(value["mean"], unit_of(metric), key, text=metric.spread(value).replace("-", "−")))
        rows.append([Cell(method.title), *cells])
    return table("Other metrics", columns, rows, [f"{place}comparison.json"])


def _difference_table(comparison: Comparison, place: str) -> str:
    found = [(i, m, d) for i, m in enumerate(comparison.methods) if (d := m.entry.get("differences"))]
    if not found:
        return ""
    headline, unit = comparison.headline, unit_of_change(comparison.headline)
    about = ", points" if headline.percent else "" if headline.higher_is_better else " (below 0 is better)"
    units: list[tuple[str, str, Unit]] = [
        ("mean", f"Δ to {_reference(comparison)}{about}", unit),
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
        texts = dict(zip(parts, headline.changes([number(d.get(part)) for part in parts], 3), strict=True))
        cells = []
        for key, _, unit in units:
            text = texts[key].replace("-", "−") if key in texts else None
            cells.append(Cell.of(d.get(key), unit, f"methods[{i}].differences.{key}", text=text))
        rows.append([Cell(m.title), *cells])
    return table("Differences", columns, rows, [f"{place}comparison.json"])


def _cost_table(comparison: Comparison, place: str) -> str:
    costs: list[tuple[str, str, Unit]] = [
        ("bytes_up", "Sent by clients", "bytes"),
        ("bytes_down", "Sent by the server", "bytes"),
        ("seconds", "Time", "seconds"),
    ]
    costs = [cost for cost in costs if any(m.value(cost[0]) is not None for m in comparison.methods)]
    target = next((t["target"] for m in comparison.methods if (t := m.entry.get("to_accuracy"))), None)
    reached: list[tuple[str, str, Unit]] = []
    if target is not None:
        goal = f"to {100 * target:g} %"
        reached = [("rounds", f"Rounds {goal}", "number"), ("bytes", f"Bytes {goal}", "bytes"),
                   ("seconds", f"Time {goal}", "seconds")]  # fmt: skip
    if not costs and not reached:
        return ""
    columns = [Column("Method"), *(Column(name, True) for _, name, _ in [*costs, *reached])]
    rows = []
    for index, method in enumerate(comparison.methods):
        where, to = f"methods[{index}]", method.entry.get("to_accuracy") or {}
        row = [Cell(method.title)]
        row += [Cell.of(method.value(key), unit, f"{where}.{key}") for key, _, unit in costs]
        row += [Cell.of(to.get(key), unit, f"{where}.to_accuracy.{key}") for key, _, unit in reached]
        rows.append(row)
    return table("Costs", columns, rows, [f"{place}comparison.json"])


def _reference(comparison: Comparison) -> str:
    name = next((d["reference"] for m in comparison.methods if (d := m.entry.get("differences"))), "")
    same = (m.title for m in comparison.methods if name in (m.entry.get("method"), m.entry.get("algorithm")))
    return next(same, str(name))


def _settings(comparison: Comparison) -> str:
    rows = []
    for method in comparison.methods:
        settings = method.entry.get("settings") or {}
        text = ", ".join(f"{key} {value}" for key, value in settings.items())
        links = "; ".join(_link(comparison.folder, str(run)) for run in method.entry.get("runs") or [])
        rows.append([Cell(method.title), Cell(text or "–", kind="how"), Cell(links or "–", kind="how", html=True)])
    columns = [Column("Method"), Column("Settings"), Column("Runs")]
    parts = [table("Settings", columns, rows, ["comparison.json"], sortable=False)]
    if comparison.entry.get("command"):
        parts.insert(0, f"<p>Again: <code>{escape(str(comparison.entry['command']))}</code></p>")
    facts = {**(comparison.entry.get("machine") or {}), **(comparison.entry.get("versions") or {})}
    if facts:
        rows = [[Cell(str(key)), Cell(str(value), kind="how")] for key, value in facts.items()]
        parts.append(table("Machine", [Column("Machine"), Column("")], rows, ["comparison.json"], sortable=False))
    return "<br>".join(parts)


def _link(folder: Path, run: str) -> str:
    page = f"{run}/report.html"
    name = f"<code>{escape(run)}</code>"
    return f'<a href="{escape(quote(page))}">{name}</a>' if (folder / page).is_file() else name


# -- figures ----------------------------------------------------------------------------------------------------


def _charts(comparison: Comparison, place: str, prefix: str) -> Iterable[Chart]:
    here = (f"{place}comparison.json",)
    rounds, clients = (f"{place}*/rounds.jsonl",), (f"{place}*/clients.csv",)
    runs = [run for method in comparison.methods for run in method.runs]
    if runs:
        parts = {str(run.folder.relative_to(comparison.folder)).count("/") for run in runs}
        depth = "/".join("*" * (max(parts) + 1))
        rounds, clients = (f"{place}{depth}/rounds.jsonl",), (f"{place}{depth}/clients.csv",)
    band = (
        f" Lines are means over {comparison.seeds} seeds, bands one standard deviation." if comparison.seeds > 1 else ""
    )
    yield _final(comparison, here, prefix)
    if any(m.entry.get("differences") for m in comparison.methods):
        yield _differences(comparison, here, prefix)
    headline, unit = comparison.headline, unit_of(comparison.headline)
    for key, name in ((headline.personal, ""), (headline.shared, "global-")):
        lines = _lines(comparison.methods, lambda run, key=key: run.curve(key))  # type: ignore[misc]
        if not lines or (key == headline.shared and _says_nothing_new(comparison)):
            continue
        which = "the one global model" if name else "what each client uses"
        yield LineChart(
            name=f"{prefix}{name}{file_name(headline.key)}",
            title=f"{headline.title} of the global model" if name else headline.title,
            reads=f"Mean {headline.name} over clients of {which}, after each round; {headline.better} is better.{band}",
            sources=rounds,
            lines=tuple(lines),
            x_label="round",
            y_label=headline.name,
            y_unit=unit,
        )
    yield from _against_bytes(comparison, rounds, prefix, band)
    yield from _client_curves(comparison, clients, prefix)
    lines = _lines(comparison.methods, lambda run: run.curve("train_loss"))
    if lines:
        yield LineChart(
            name=f"{prefix}loss",
            title="Training loss",
            reads="Mean loss of the participating clients over their local training; losses of methods with different "
            "objectives are not comparable." + band,
            sources=rounds,
            lines=tuple(lines),
            x_label="round",
            y_label="loss",
            y_unit="number",
        )
    for metric in extra_metrics([row for run in runs for row in run.rounds], headline):
        lines = _lines(comparison.methods, lambda run, key=metric.key: run.curve(key))  # type: ignore[misc]
        yield LineChart(
            name=prefix + file_name(metric.key),
            title=metric.title,
            reads=metric.reads + band,
            sources=rounds,
            lines=tuple(lines),
            x_label="round",
            y_label=metric.axis,
            y_unit=metric.unit,
        )
    shown = next((run for run in runs if splits(run)), None)
    if shown is not None:
        chart = split_chart(shown)
        path = f"{place}{shown.folder.relative_to(comparison.folder).as_posix()}/split.json"
        seed = f" This is the split of seed {shown.summary.get('seed')}." if comparison.seeds > 1 else ""
        yield type(chart)(**{**vars(chart), "name": f"{prefix}split", "sources": (path,), "reads": chart.reads + seed})


def _says_nothing_new(comparison: Comparison) -> bool:
    """Whether the global model's figure is only there where it is the personal one."""
    own, shared = comparison.headline.personal, comparison.headline.shared
    for run in (run for method in comparison.methods for run in method.runs):
        for row in run.rounds:
            if row.get(shared) is not None and row[shared] != row.get(own):
                return False
    return True


def _final(comparison: Comparison, sources: tuple[str, ...], prefix: str) -> Chart:
    headline, intervals = comparison.headline, []
    for method in comparison.methods:
        mean, std = method.value(headline.personal), method.value(headline.personal, "std")
        low, high = (None, None) if mean is None or std is None else (mean - std, mean + std)
        intervals.append(Interval(method.title, mean or 0.0, low, high, color=method.color))
    marks = "accuracies" if headline.key == "accuracy" else "values"
    better = "right" if headline.higher_is_better else "left"
    bars = ", the bars one standard deviation over seeds" if comparison.seeds > 1 else ""
    return IntervalChart(
        name=f"{prefix}final",
        title=f"Final {headline.name}",
        reads=f"The marks are {marks} after the last round, {comparison.over}{bars}; further {better} is better.",
        sources=sources,
        intervals=tuple(intervals),
        x_label=headline.name,
        unit=unit_of(headline),
    )


def _differences(comparison: Comparison, sources: tuple[str, ...], prefix: str) -> Chart:
    intervals = []
    for method in comparison.methods:
        difference = method.entry.get("differences") or {}
        mean = number(difference.get("mean"))
        if mean is not None:
            low, high = number(difference.get("low")), number(difference.get("high"))
            intervals.append(Interval(method.title, mean, low, high, color=method.color))
    reference, headline = _reference(comparison), comparison.headline
    left, right = ("worse", "better") if headline.higher_is_better else ("better", "worse")
    return IntervalChart(
        name=f"{prefix}differences",
        title=f"Difference to {reference}",
        reads=f"Mean difference in {headline.name} to {reference}, client by client, with its 95 % interval: left of "
        f"zero is {left}, right is {right}, and a bar that crosses zero may be chance.",
        sources=sources,
        intervals=tuple(intervals),
        x_label="percentage points" if headline.percent else f"difference in {headline.name}",
        unit=unit_of_change(headline),
        zero=True,
    )


def _lines(methods: Sequence[Method], curve: Callable[[RunFiles], Curve]) -> list[Line]:
    """A line per method: the mean over its runs where all have a value, with a band of one standard deviation."""
    lines = []
    for method in methods:
        curves = [dict(zip(*curve(run), strict=True)) for run in method.runs]
        common = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
        if not common:
            continue
        values = np.array([[c[x] for x in common] for c in curves])
        low, high = _band(values)
        lines.append(Line(method.title, common, values.mean(axis=0).tolist(), low, high, method.color))
    return lines


def _band(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[list[float] | None, list[float] | None]:
    if len(values) < 2:
        return None, None
    mean, std = values.mean(axis=0), values.std(axis=0, ddof=1)
    return (mean - std).tolist(), (mean + std).tolist()


def _against_bytes(comparison: Comparison, sources: tuple[str, ...], prefix: str, band: str) -> Iterable[Chart]:
    lines: list[Line] = []
    headline = comparison.headline
    own = headline.personal
    for method in comparison.methods:
        for line in _lines([method], lambda run: run.curve(own)):
            sent = [dict(zip(run.curve(own)[0], run.against_bytes(own)[0], strict=True)) for run in method.runs]
            x = [float(np.mean([s[r] for s in sent])) for r in line.x]
            silent = x[-1] == 0
            y = [line.y[-1]] if silent else line.y
            ends = (None, None) if silent else (line.low, line.high)
            label = f"{line.label} (sends nothing)" if silent else line.label
            lines.append(Line(label, [0.0] if silent else x, y, *ends, method.color, level=silent))
    talking = [line.x for line in lines if not line.level]
    if not talking:
        return
    totals, log = [x[-1] for x in talking], False
    log = max(totals) > 8 * min(totals) and min(x[0] for x in talking) > 0
    axis = " The axis of bytes is logarithmic." if log else ""
    yield LineChart(
        name=f"{prefix}{file_name(headline.key)}-bytes",
        title=f"{headline.title} against bytes",
        reads=f"The same {headline.name} over what all clients together had sent by then; a curve further left or "
        f"{headline.better} learns more from its traffic.{axis}{band}",
        sources=sources,
        lines=tuple(lines),
        x_label="sent by clients",
        y_label=headline.name,
        x_unit="bytes",
        y_unit=unit_of(headline),
        log_x=log,
        nearest=True,
    )


def _client_curves(comparison: Comparison, sources: tuple[str, ...], prefix: str) -> Iterable[Chart]:
    lines, headline = [], comparison.headline
    for method in comparison.methods:
        counts = [len(run.results) for run in method.runs]
        if not counts or not min(counts):
            continue
        x = np.linspace(0, 1, min(min(counts), 101))
        quantiles = x if headline.higher_is_better else 1 - x
        values = np.array([np.quantile(run.results, quantiles) for run in method.runs])
        lines.append(Line(method.title, x.tolist(), values.mean(axis=0).tolist(), *_band(values), color=method.color))
    if lines:
        seeds = f" Means over {comparison.seeds} seeds, bands one standard deviation." if comparison.seeds > 1 else ""
        yield LineChart(
            name=f"{prefix}clients",
            title=f"{headline.title} over the clients",
            reads="Clients from the worst on the left to the best on the right, for each method in its own order: at "
            f"10 % stands the {headline.name} that a tenth of the clients do not "
            f"{'exceed' if headline.higher_is_better else 'stay below'}.{seeds}",
            sources=sources,
            lines=tuple(lines),
            x_label="share of clients",
            y_label=headline.name,
            x_unit="percent",
            y_unit=unit_of(headline),
        )
