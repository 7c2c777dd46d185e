"""A comparison as tables: for the console (80 to 110 columns) and as CSV. Made of ``comparison.json`` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commonground.compare.methods import as_text, shown
from commonground.counted import counted, counted_between
from commonground.table import Column, Table
from commonground.tasks import Headline, Target
from commonground.terminal import human_bytes

__all__ = ["cost_table", "headline_table", "method_table", "metric_table", "target_table", "tuning_table"]


def headline_table(result: Mapping[str, Any]) -> Table:
    """The headline metric over clients and differences to the reference; the best method is bold."""
    headline = Headline.of(result)
    reference = next(entry["title"] for entry in result["methods"] if entry["method"] == result["reference"])
    seeds = result["seeds"]
    over = f"mean ± std over {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    rounds = counted_between(result.get("rounds_between", [result["rounds"]]), "round")
    title = f"{result['data']}, {counted(result['clients'], 'client')}, {rounds}, {over}"
    sign = headline.sign
    names = (f"{headline.name}{sign}", f"worst\ntenth{sign}", f"Δ to\n{reference} [95 %]", "p\nclients", "p\nseeds")
    means = [entry[headline.personal]["mean"] for entry in result["methods"]]
    rows = []
    shown, worst = (
        headline.spreads([e[key] for e in result["methods"]]) for key in (headline.personal, headline.worst_tenth)
    )
    for index, entry in enumerate(result["methods"]):
        d = entry["differences"]
        rows.append(
            (
                entry["title"],
                shown[index],
                worst[index],
                _difference(headline, entry, result["reference"]),
                "" if d is None else _p(d["p_adjusted"]),
                "" if d is None else _p(d["p_seeds"]),
            )
        )
    rows += [(one["title"], "diverged", "", "", "", "") for one in result.get("diverged", [])]
    best = frozenset(index for index, mean in enumerate(means) if mean == headline.best(means))
    return _table(title, ("method",), names, rows, best)


def cost_table(result: Mapping[str, Any]) -> Table:
    """The headline metric of the last rounds and of the global model, where there is one, and what a run costs."""
    headline = Headline.of(result)
    judged = {"last10": f"last 10\nrounds{headline.sign}", headline.shared: f"global\n{headline.name}{headline.sign}"}
    none = {"mean": None, "std": None}
    values = {key: [entry[key] or none for entry in result["methods"]] for key in judged}
    measured = [key for key in judged if any(value["mean"] is not None for value in values[key])]
    names = (*(judged[key] for key in measured), "sent by\nclients", "sent by\nserver", "\nseconds")
    rows = [
        (
            entry["title"],
            *(headline.spread(values[key][index]) for key in measured),
            human_bytes(entry["bytes_up"]),
            human_bytes(entry["bytes_down"]),
            f"{entry['seconds']:.1f}",
        )
        for index, entry in enumerate(result["methods"])
    ]
    return _table("per run", ("method",), names, rows)


def metric_table(result: Mapping[str, Any]) -> Table | None:
    """The task's other metrics, means over clients; None where it has none."""
    metrics = Headline.of(result).others(result["methods"][0])
    if not metrics:
        return None
    columns = [m.spreads([entry["metrics"][m.key] for entry in result["methods"]]) for m in metrics]
    rows = [(entry["title"], *cells) for entry, *cells in zip(result["methods"], *columns, strict=True)]
    return _table("other metrics, means over clients", ("method",), [f"{m.name}{m.sign}" for m in metrics], rows)


def target_table(result: Mapping[str, Any]) -> Table | None:
    """What it costs to reach the target; None without one."""
    target = Target.of(result)
    if target is None:
        return None
    rows = []
    for entry in result["methods"]:
        cost, seeds = entry[target.key], len(result["seeds"])
        if cost is None:
            rows.append((entry["title"], "–", "–", "–", f"0 of {seeds}"))
        else:
            figures = f"{cost['rounds']:.3g}", human_bytes(cost["bytes"]), f"{cost['seconds']:.1f}"
            rows.append((entry["title"], *figures, f"{cost['reached']} of {seeds}"))
    names = ("rounds", "bytes", "seconds", "seeds that reach it")
    return _table(f"to {target.text}", ("method",), names, rows)


def tuning_table(result: Mapping[str, Any]) -> Table | None:
    """A row per method and candidate, a column per seed; the chosen ones are marked."""
    if not result["tuning"]:
        return None
    headline, seeds = Headline.of(result), result["seeds"]
    rows = []
    for label in dict.fromkeys(each["method"] for each in result["tuning"]):
        mine = {each["seed"]: each for each in result["tuning"] if each["method"] == label}
        first = next(iter(mine.values()))
        for number, candidate in enumerate(first["candidates"]):
            cells = []
            for seed in seeds:
                if seed not in mine:  # training diverged with an earlier one
                    cells.append("")
                    continue
                tried = mine[seed]["candidates"][number]
                mark = "*" if tried["settings"] == mine[seed]["chosen"] else " "
                score = tried[f"validation_{headline.key}"]
                none = "undefined" if tried.get("undefined") else "diverged"
                cells.append(none if score is None else f"{headline.bare(score)}{mark}")
            title = first["title"] if number == 0 else ""
            rows.append((title, shown(candidate["settings"]), *cells))
    names = [f"seed {seed}" for seed in seeds]
    title = f"tuning: validation {headline.name}{headline.sign}  (* chosen)"
    return _table(title, ("method", "candidate"), names, rows)


def method_table(result: Mapping[str, Any]) -> Table:
    """Every figure of every method, as in ``table.csv``; accuracies are shares, not percent."""
    headline = Headline.of(result)
    return Table.of("methods", [_flat(headline, entry, Target.of(result)) for entry in result["methods"]])


def _flat(headline: Headline, entry: Mapping[str, Any], target: Target | None) -> dict[str, Any]:
    none = {"mean": None, "std": None}
    row: dict[str, Any] = {"method": entry["method"], "title": entry["title"]}
    for key in (headline.personal, "last10", headline.shared, headline.worst_tenth, headline.worst):
        row |= {f"{key}_{part}": value for part, value in (entry[key] or none).items()}
    row |= {f"{key}_mean": value["mean"] for key, value in entry["percentiles"].items()}
    for key, value in entry.get("metrics", {}).items():
        row |= {f"{key}_{part}": number for part, number in value.items()}
    row |= {f"{key}_over_rows_mean": value["mean"] for key, value in entry.get("over_rows", {}).items()}
    row |= {key: entry[key] for key in ("bytes_up", "bytes_down", "seconds")}
    cost = {} if target is None else entry[target.key] or {}
    row["target"] = None if target is None else target.value
    row |= {f"{key}_to_target": cost.get(key) for key in ("rounds", "bytes", "seconds")}
    row["seeds_to_target"] = None if target is None else cost.get("reached", 0)
    keys = ("mean", "std", "low", "high", "p_clients", "p_adjusted", "p_seeds", "p_seeds_adjusted")
    row |= {f"difference_{key}": (entry["differences"] or {}).get(key) for key in keys}
    row["settings"] = as_text(entry["settings"], " ")
    return row


def _table(
    title: str,
    words: Sequence[str],
    numbers: Sequence[str],
    rows: Sequence[Sequence[str]],
    bold: frozenset[int] = frozenset(),
) -> Table:
    """Columns of words first, of numbers after them; ``rows`` are in that order."""
    columns = (*(Column(name) for name in words), *(Column(name, numeric=True) for name in numbers))
    names = [column.name for column in columns]
    return Table(title, columns, [dict(zip(names, row, strict=True)) for row in rows], bold)


def _difference(headline: Headline, entry: Mapping[str, Any], reference: str) -> str:
    d = entry["differences"]
    if d is None:
        return "reference" if entry["method"] == reference else "–"
    mean, low, high = headline.changes([d["mean"], d["low"], d["high"]])
    return mean if d["low"] is None else f"{mean} [{low}, {high}]"


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"
