"""The page of one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from commonground.counted import counted
from commonground.data.tables.schema import TableSchema
from commonground.privacy import about_privacy
from commonground.report.adaptation import add_adaptation
from commonground.report.format import Unit, show, unit_of
from commonground.report.gains import gain_chart, gain_table, within_run
from commonground.report.importance import add_importance
from commonground.report.page import Cell, Page, day, escape, table
from commonground.report.read import RunFiles, as_number, read_run
from commonground.report.run_charts import (
    MOST_CLIENTS,
    client_chart,
    from_worst,
    learning_charts,
    metric_charts,
    split_chart,
    splits,
)
from commonground.table import Column
from commonground.tasks import Headline, about_balance, special_clients, tested_clients
from commonground.terminal import human_bytes

__all__ = ["write_run_report"]


def write_run_report(folder: str | Path, *, split: Mapping[str, Any] | None = None) -> Path:
    """Write ``report.html`` and ``figures/`` into a finished run's folder, from the files that are in it.

    Args:
        folder: of the run.
        split: ``{"class_names": […], "train": [[count per class] per client]}``, for a folder without ``split.json``.

    Returns:
        The path of the page.

    Raises:
        RunError: the folder holds no finished run, a file is damaged, or the folder cannot be written.
    """
    run = read_run(Path(folder), split)
    summary, headline, unit = run.summary, run.headline, unit_of(run.headline)
    own = summary[headline.personal]
    clients = summary.get("clients", len(run.clients))
    page = Page(run.folder, f"{run.title} on {summary.get('data', 'unknown data')}", _subtitle(run))
    only_global = _only_global(run)
    kind = "the one global model" if only_global else "each client's own model"
    beyond = "less" if headline.higher_is_better else "more"
    whole, part = _over_rows(run), "final_test" in summary or summary.get("lost_clients")
    tiles = [
        (
            f"{headline.title}, mean over {tested_clients(summary) if part else 'clients'}",
            show(own["mean"], unit),
            f"of {kind}, on its own test samples" + (f"; {whole} over all rows" if whole else ""),
        ),
        (
            "Worst tenth of clients",
            show(own.get(headline.worst_tenth), unit),
            f"or {beyond} ({headline.percentile}{_ranked(summary)})",
        ),
        (
            "Sent by all clients",
            show(summary.get("bytes_up"), "bytes"),
            f"in {counted(summary['rounds'], 'round')}" if "rounds" in summary else "",
        ),
        ("Time", show(summary.get("seconds"), "seconds"), f"training and tests, engine {summary.get('engine', '–')}"),
    ]
    page.tiles([tile for tile in tiles if tile[1] != "–"])
    which = summary.get(f"{headline.personal}_of", kind)
    page.section("Results", f"Every {headline.name} is that of {which}, unless said.")
    page.add(_headline(run))
    page.add(_all_metrics(run))
    least = (summary.get("worst_tenth") or {}).get("min_rows", 1)
    if few := headline.few_tests(run.clients.numbers(headline.personal), run.clients.numbers("test_samples"), least):
        page.note(few)
    for clause in special_clients(summary):
        page.note(f"These figures are {clause}.")
    if unbalanced := about_balance(summary):
        page.note(unbalanced)
    if privacy := summary.get("privacy"):
        page.note(f"Privacy: {about_privacy(privacy)}. Not covered: {privacy['not_covered']}.")
    if run.config.get("finetune_epochs"):
        page.note(
            f"The figures over rounds follow the global model; the personal {headline.name} of the table is measured "
            f"once, after the last round and {run.config['finetune_epochs']} epochs of fine-tuning on every client."
        )
    rank = Headline.ranking(summary)
    if early := summary.get("early_stopping"):
        page.note(
            f"Models and figures are those of round {early.get('best_round')} of {summary.get('rounds', '–')}, the "
            f"best on rows held out for validation ({rank.name} {show(early.get('value'), unit_of(rank))})."
        )
    page.section("Learning", f"What happened from round to round, for {counted(clients, 'client')}.")
    page.figures([*learning_charts(run, only_global), *metric_charts(run)])
    page.section("Clients", "A mean hides who is served badly: every client has its own place here.")
    gains = within_run(run)
    charts = [client_chart(run), *([] if gains is None else [gain_chart(gains)])]
    page.figures([*charts, *([split_chart(run)] if splits(run) else [])])
    if gains is not None:
        page.note(gains.sentence)
        page.add(gain_table(gains))
    elif run.summary.get(headline.shared) is None:
        page.note(
            "This method has no global model to compare the clients' own with; a comparison with FedAvg and Local Only "
            "(commonground compare) shows where they help."
        )
    page.add(_client_table(run))
    if told := TableSchema.sentences(run.summary.get("table", {})):
        page.note(" ".join(["How the data were read:", *told]))
    add_importance(page, run)
    add_adaptation(page, run.folder)
    page.section("Configuration and machine", "Everything that is needed to run this again.")
    page.add(_settings(run))
    return page.write()


def _subtitle(run: RunFiles) -> str:
    s = run.summary
    parts = [
        counted(s.get("clients", len(run.clients)), "client"),
        counted(s["rounds"], "round") if "rounds" in s else "",
        f"model {s['model']}" if "model" in s else "",
        f"seed {s['seed']}" if "seed" in s else "",
        f"begun with the weights of {s['init_from']['from']}" if "init_from" in s else "",
        f"finished on {day(s['finished'])}" if "finished" in s else "",
    ]
    return ", ".join(part for part in parts if part) + "."


def _only_global(run: RunFiles) -> bool:
    """Whether the clients have no models of their own, so that both figures are one."""
    own, shared = run.headline.personal, run.headline.shared
    rows = [row for row in run.rounds if row.get(own) is not None]
    same = all(row.get(shared) == row[own] for row in rows)
    return bool(rows) and same and not run.config.get("finetune_epochs")


def _results(run: RunFiles) -> list[tuple[str, str, Unit, str]]:
    """What summary.json holds that belongs into the headline table: key, name, unit, explanation."""
    headline, unit = run.headline, unit_of(run.headline)
    own, shared, name = headline.personal, headline.shared, headline.name
    worst = "lowest" if headline.higher_is_better else "highest"
    panel = "" if run.panel is None else f", of the panel of {run.panel:,} clients that rounds test"
    whole: list[tuple[str, str, Unit, str]] = [
        (f"metrics.{headline.key}.over_rows", "Over all rows", unit, "all clients' test samples as one set")
    ]
    return [
        (f"{own}.mean", f"Personal {name}", unit, "mean over clients, each tested on its own test samples"),
        *(whole if _over_rows(run) else []),
        (f"{own}.std", "Spread over clients", unit, "standard deviation over clients"),
        (
            f"{own}.{headline.worst_tenth}",
            "Worst tenth",
            unit,
            f"{headline.percentile} over clients{_ranked(run.summary)}",
        ),
        (f"{own}.{headline.worst}", "Worst client", unit, f"the {worst} {name} of any client"),
        (f"{own}.last10", "Last 10 rounds", unit, f"mean of the evaluated ones among the last 10 rounds{panel}"),
        (shared, f"Global {name}", unit, "the single shared model on every client's test samples"),
        (f"{shared}_last10", "Global, last 10 rounds", unit, f"the same, mean over the last 10 rounds{panel}"),
        ("bytes_up", "Sent by clients", "bytes", "all clients together, all rounds"),
        ("bytes_down", "Sent by the server", "bytes", "to all participants, all rounds"),
        ("seconds", "Time", "seconds", "training and the tests after rounds, without loading the data"),
        ("peak_rss_bytes", "Peak memory", "bytes", "resident set of the process, PyTorch included"),
    ]


def _headline(run: RunFiles) -> str:
    rows = []
    for key, name, unit, how in _results(run):
        value: Any = run.summary
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            rows.append([Cell(name), Cell.of(value, unit, key), Cell(how, kind="how"), Cell(key, kind="how")])
    columns = [Column("Measure"), Column("Value", True), Column("What it is"), Column("Name in the file")]
    return table("Results", columns, rows, ["summary.json"], sortable=False)


def _over_rows(run: RunFiles) -> str:
    """The headline metric over all clients' samples as one set, where that is another number than their mean."""
    unit, metric = unit_of(run.headline), (run.summary.get("metrics") or {}).get(run.headline.key) or {}
    whole = show(metric.get("over_rows"), unit)
    return "" if whole in ("–", show(run.summary[run.headline.personal]["mean"], unit)) else whole


_PARTS = {
    "mean": "Mean over clients",
    "std": "Spread",
    "p10": "10th percentile",
    "p90": "90th percentile",
    "over_rows": "Over all rows",
    "clients": "Clients",
}


def _all_metrics(run: RunFiles) -> str:
    """Every metric of a task that has several."""
    others = run.headline.others(run.summary)
    if not others:
        return ""
    values = run.summary["metrics"]
    units: dict[str, Unit] = {"clients": "integer"}
    rows = [
        [
            Cell(m.title),
            *(
                Cell.of(values[m.key].get(part), units.get(part, unit_of(m)), f"metrics.{m.key}.{part}")
                for part in _PARTS
            ),
        ]
        for m in [run.headline, *others]
    ]
    columns = [Column("Metric"), *(Column(name, True) for name in _PARTS.values())]
    remark = "Clients: those for which a metric is defined"
    # Where it is exact there is nothing to say, and no bound reads as nothing.
    within = [f"{m.name} over all rows is made of counts in bins, exact to {m.bound(off)}"
              for m in others if (off := values[m.key].get("over_rows_within"))]  # fmt: skip
    remark = f"<p>{escape('; '.join([remark, *within]))}.</p>"
    return table("Metrics", columns, rows, ["summary.json"], sortable=False) + remark


def _ranked(summary: Mapping[str, Any]) -> str:
    """How many clients a percentile is over, where that are not all."""
    about = summary.get("worst_tenth") or {"min_rows": 1}
    if about["min_rows"] == 1:
        return ""
    return f" of {about['clients']:,} clients with at least {about['min_rows']} test samples"


# -- tables -----------------------------------------------------------------------------------------------------


def _client_columns(run: RunFiles) -> dict[str, tuple[str, Unit]]:
    headline = run.headline
    counted: dict[str, tuple[str, Unit]] = {
        "name": ("Client", "integer"),
        "train_samples": ("Training samples", "integer"),
        "test_samples": ("Test samples", "integer"),
        "classes": (headline.counted.capitalize(), "integer"),
        "rounds": ("Rounds it took part in", "integer"),
    }
    if not headline.divides:
        del counted["classes"]
    metrics = [headline, *headline.others(run.summary)]
    own: dict[str, tuple[str, Unit]] = {f"personal_{m.key}": (m.title, unit_of(m)) for m in metrics}
    shared: dict[str, tuple[str, Unit]] = {headline.shared: (f"Global {headline.name}", unit_of(headline))}
    return {**counted, **own, **shared, "test_loss": ("Test loss", "number")}


def _client_table(run: RunFiles) -> str:
    """All clients; of very many those at both ends."""
    known = _client_columns(run)
    keys = [key for key in known if key == "name" or np.isfinite(run.clients.numbers(key)).any()]
    columns = [Column(known[key][0], key != "name") for key in keys]
    count, shown = len(run.clients), run.clients[:MOST_CLIENTS]
    what = f"all {count:,} clients"
    if count > MOST_CLIENTS:
        half, ranked = MOST_CLIENTS // 2, from_worst(run)
        shown = [run.clients[place] for place in (*ranked[:half], *ranked[-half:])]
        what = f"the {half} clients served worst and the {half} served best, of {count:,}"
    rows = [
        [Cell(row[key]) if key == "name" else Cell.of(_whole(row[key]), known[key][1], key) for key in keys]
        for row in shown
    ]
    body = table("Clients", columns, rows, ["clients.csv"])
    if count > MOST_CLIENTS:
        body += f'<p class="source">All {count:,} are in <a href="clients.csv">clients.csv</a>.</p>'
    return f"<details><summary>Table of {what}</summary>{body}</details>"


def _whole(text: str | None) -> float | None:
    value = as_number(text)
    return int(value) if value is not None and text is not None and text.lstrip("-").isdigit() else value


def _settings(run: RunFiles) -> str:
    parts = []
    if run.config:
        flat = _flat(run.config)
        rows = [[Cell(key), Cell(value, kind="how")] for key, value in flat if value not in ("{}", "")]
        parts.append(
            table("Configuration", [Column("Setting"), Column("Value")], rows, ["config.toml"], sortable=False)
        )
    facts: list[tuple[str, Any]] = list(_flat(run.summary.get("machine") or {}))
    if run.summary.get("peak_rss_bytes"):
        facts.append(("peak memory", human_bytes(run.summary["peak_rss_bytes"])))
    facts += [(key.replace("_", " "), run.summary[key]) for key in ("finished", "engine") if run.summary.get(key)]
    hashes = [("weights sha256", "weights_sha256"), ("data fingerprint", "data_fingerprint")]
    rows = [[Cell(name), Cell(str(value), kind="how")] for name, value in facts]
    rows += [
        [Cell(name), Cell(f"<code>{Cell(str(run.summary[key])).text}</code>", kind="how", html=True)]
        for name, key in hashes
        if str(run.summary.get(key, "")).isalnum()
    ]
    parts.append(table("Machine", [Column("Machine"), Column("Value")], rows, ["summary.json"], sortable=False))
    return _again(run) + '<div class="two">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"


def _again(run: RunFiles) -> str:
    """The command by which the run comes once more."""
    if not run.config:
        return ""
    command = "commonground train --config FOLDER/config.toml --out NEW_FOLDER"
    where = "from where this run was started (FOLDER is its own)"
    return f"<p>Again, with the same numbers, {where}: <code>{command}</code></p>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)))
    return found
