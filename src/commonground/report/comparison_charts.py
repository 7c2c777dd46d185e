"""The figures of a comparison's page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from typing import Any

import numpy as np

from commonground.report.charts import Chart, Interval, IntervalChart, Line, LineChart
from commonground.report.compared import ComparisonFiles, MethodFiles
from commonground.report.format import number, unit_of, unit_of_change
from commonground.report.metrics import extra_metrics
from commonground.report.read import RunFiles
from commonground.report.run_charts import file_name, split_chart, splits

__all__ = ["comparison_charts"]

Curve = tuple[list[float], list[float]]


def comparison_charts(comparison: ComparisonFiles, place: str, prefix: str) -> Iterable[Chart]:
    """The figures, one after the other.

    Args:
        comparison: what to show.
        place: of its folder, as seen from the page's.
        prefix: of the figures' names.
    """
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
        lines = _lines(comparison.methods, methodcaller("curve", key))
        if not lines or (key == headline.shared and _says_nothing_new(comparison)):
            continue
        which = "the one global model" if name else "what each client uses"
        yield LineChart(
            name=f"{prefix}{name}{file_name(headline.key)}",
            title=f"{headline.title} of the global model" if name else headline.title,
            reads=f"Mean {headline.name} over clients of {which}, after each round; {headline.better} is better."
            f"{_before_tuning(comparison)}{band}",
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
    own = runs[0].headline if runs else headline  # rounds tell in it, whatever the comparison ranks by
    for metric in extra_metrics([row for run in runs for row in run.rounds], headline, own):
        lines = _lines(comparison.methods, methodcaller("curve", metric.key))
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


def _says_nothing_new(comparison: ComparisonFiles) -> bool:
    """Whether the global model's figure is only there where it is the personal one."""
    own, shared = comparison.headline.personal, comparison.headline.shared
    for run in (run for method in comparison.methods for run in method.runs):
        for row in run.rounds:
            if row.get(shared) is not None and row[shared] != row.get(own):
                return False
    return True


def _final(comparison: ComparisonFiles, sources: tuple[str, ...], prefix: str) -> Chart:
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
        reads=f"The marks are {marks} {comparison.judged}, {comparison.over}{bars}; further {better} is better.",
        sources=sources,
        intervals=tuple(intervals),
        x_label=headline.name,
        unit=unit_of(headline),
    )


def _differences(comparison: ComparisonFiles, sources: tuple[str, ...], prefix: str) -> Chart:
    intervals = []
    for method in comparison.methods:
        difference = method.entry.get("differences") or {}
        mean = number(difference.get("mean"))
        if mean is not None:
            low, high = number(difference.get("low")), number(difference.get("high"))
            intervals.append(Interval(method.title, mean, low, high, color=method.color))
    reference, headline = comparison.reference, comparison.headline
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


def _lines(methods: Sequence[MethodFiles], curve: Callable[[RunFiles], Curve]) -> list[Line]:
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


def _against_bytes(comparison: ComparisonFiles, sources: tuple[str, ...], prefix: str, band: str) -> Iterable[Chart]:
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


def _client_curves(comparison: ComparisonFiles, sources: tuple[str, ...], prefix: str) -> Iterable[Chart]:
    lines, headline = [], comparison.headline
    for method in comparison.methods:
        counts = [len(run.values(headline)) for run in method.runs]
        if not counts or not min(counts):
            continue
        x = np.linspace(0, 1, min(min(counts), 101))
        quantiles = x if headline.higher_is_better else 1 - x
        values = np.array([np.quantile(run.values(headline), quantiles) for run in method.runs])
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


def _before_tuning(comparison: ComparisonFiles) -> str:
    """Where a method's clients tune a head at the end, the rounds before know nothing of it."""
    tuned = [m.title for m in comparison.methods if any(run.config.get("finetune_epochs") for run in m.runs)]
    if not tuned:
        return ""
    return (
        f" Of {' and '.join(tuned)} it is what clients have before they tune their heads, which follows the last round."
    )
