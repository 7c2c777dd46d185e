"""The page of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from commonground.console import human_bytes
from commonground.report.adaptation import add_adaptation
from commonground.report.charts import CellChart, Chart, Line, LineChart
from commonground.report.format import Unit, show
from commonground.report.metrics import extra_metrics
from commonground.report.page import Cell, Page, day, table
from commonground.report.read import RunFiles, as_number, read_run
from commonground.table import Column

__all__ = ["split_chart", "write_run_report"]

MOST_CLIENTS = 200  # in a picture or a table; the files hold all


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
    summary, accuracy = run.summary, run.summary["personal_accuracy"]
    clients = summary.get("clients", len(run.clients))
    page = Page(run.folder, f"{run.title} on {summary.get('data', 'unknown data')}", _subtitle(run))
    only_global = _only_global(run)
    kind = "the one global model" if only_global else "each client's own model"
    tiles = [
        ("Accuracy, mean over clients", show(accuracy["mean"], "percent"), f"of {kind}, on its own test samples"),
        (
            "Worst tenth of clients",
            show(accuracy.get("p10"), "percent"),
            "or less (10th percentile)",
        ),
        ("Sent by all clients", show(summary.get("bytes_up"), "bytes"), f"in {summary.get('rounds', '–')} rounds"),
        ("Time", show(summary.get("seconds"), "seconds"), f"training and tests, engine {summary.get('engine', '–')}"),
    ]
    page.tiles([tile for tile in tiles if tile[1] != "–"])
    page.section("Results", f"Every accuracy is that of {summary.get('personal_accuracy_of', kind)}, unless said.")
    page.add(_headline(run))
    if run.config.get("finetune_epochs"):
        page.note(
            "The figures over rounds follow the global model; the personal accuracy of the table is measured once, "
            f"after the last round and {run.config['finetune_epochs']} epochs of fine-tuning on every client."
        )
    page.section("Learning", f"What happened from round to round, for {clients:,} clients.")
    page.figures([*_learning(run, only_global), *_metrics(run)])
    page.section("Clients", "A mean hides who is served badly: every client has its own place here.")
    page.figures([_client_chart(run), *([split_chart(run)] if run.split is not None else [])])
    page.add(_client_table(run))
    add_adaptation(page, run.folder)
    page.section("Configuration and machine", "Everything that is needed to run this again.")
    page.add(_settings(run))
    return page.write()


def _subtitle(run: RunFiles) -> str:
    s = run.summary
    parts = [
        f"{s.get('clients', len(run.clients)):,} clients",
        f"{s['rounds']:,} rounds" if "rounds" in s else "",
        f"model {s['model']}" if "model" in s else "",
        f"seed {s['seed']}" if "seed" in s else "",
        f"finished on {day(s['finished'])}" if "finished" in s else "",
    ]
    return ", ".join(part for part in parts if part) + "."


def _only_global(run: RunFiles) -> bool:
    """Whether the clients have no models of their own, so that both accuracies are one."""
    rows = [row for row in run.rounds if row.get("personal_accuracy") is not None]
    same = all(row.get("global_accuracy") == row["personal_accuracy"] for row in rows)
    return bool(rows) and same and not run.config.get("finetune_epochs")


# What summary.json holds that belongs into the headline table: key, name, unit, explanation.
_HEADLINE: tuple[tuple[str, str, Unit, str], ...] = (
    (
        "personal_accuracy.mean",
        "Personal accuracy",
        "percent",
        "mean over clients, each tested on its own test samples",
    ),
    ("personal_accuracy.std", "Spread over clients", "percent", "standard deviation over clients"),
    ("personal_accuracy.p10", "Worst tenth", "percent", "10th percentile over clients"),
    ("personal_accuracy.min", "Worst client", "percent", "the lowest accuracy of any client"),
    ("personal_accuracy.last10", "Last 10 rounds", "percent", "mean of the evaluated ones among the last 10 rounds"),
    ("global_accuracy", "Global accuracy", "percent", "the single shared model on every client's test samples"),
    ("global_accuracy_last10", "Global, last 10 rounds", "percent", "the same, mean over the last 10 rounds"),
    ("bytes_up", "Sent by clients", "bytes", "all clients together, all rounds"),
    ("bytes_down", "Sent by the server", "bytes", "to all participants, all rounds"),
    ("seconds", "Time", "seconds", "training and the tests after rounds, without loading the data"),
    ("peak_rss_bytes", "Peak memory", "bytes", "resident set of the process, PyTorch included"),
)


def _headline(run: RunFiles) -> str:
    rows = []
    for key, name, unit, how in _HEADLINE:
        value: Any = run.summary
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            rows.append([Cell(name), Cell.of(value, unit, key), Cell(how, kind="how"), Cell(key, kind="how")])
    columns = [Column("Measure"), Column("Value", True), Column("What it is"), Column("Name in the file")]
    return table("Results", columns, rows, ["summary.json"], sortable=False)


# -- figures ----------------------------------------------------------------------------------------------------


def _learning(run: RunFiles, only_global: bool) -> Iterable[Chart]:
    keys = ["global_accuracy"] if only_global else ["personal_accuracy", "global_accuracy"]
    names = {"personal_accuracy": "each client's own model", "global_accuracy": "the one global model"}
    if run.config.get("finetune_epochs"):
        keys = ["global_accuracy"]
    tested = "" if run.panel is None else f" Tested on a fixed panel of {run.panel:,} clients until the last round."
    lines = [Line(names[key], *run.curve(key), color=i) for i, key in enumerate(keys) if run.curve(key)[0]]
    if lines:
        yield LineChart(
            name="accuracy",
            title="Accuracy",
            reads="Mean accuracy over clients on their own test samples after each round; higher is better." + tested,
            sources=("rounds.jsonl",),
            lines=tuple(lines),
            x_label="round",
            y_label="accuracy",
        )
    lines = [
        Line(names[key], *run.against_bytes(key), color=i) for i, key in enumerate(keys) if run.against_bytes(key)[0]
    ]
    if lines and lines[0].x[-1] > 0:
        yield LineChart(
            name="accuracy-bytes",
            title="Accuracy against bytes",
            reads="The same accuracy over what all clients together had sent by then; a curve further left learns "
            "with less traffic.",
            sources=("rounds.jsonl",),
            lines=tuple(lines),
            x_label="sent by clients",
            y_label="accuracy",
            x_unit="bytes",
        )
    x, y = run.curve("train_loss")
    if x:
        yield LineChart(
            name="loss",
            title="Training loss",
            reads="Mean loss of the participating clients over their local training in each round; it should fall and "
            "level off.",
            sources=("rounds.jsonl",),
            lines=(Line("training loss", x, y),),
            x_label="round",
            y_label="loss",
            y_unit="number",
        )


def _metrics(run: RunFiles) -> Iterable[Chart]:
    for metric in extra_metrics(run.rounds):
        yield LineChart(
            name=metric.key.replace("_", "-").replace("/", "-"),
            title=metric.title,
            reads=metric.reads,
            sources=("rounds.jsonl",),
            lines=(Line(metric.axis, *run.curve(metric.key)),),
            x_label="round",
            y_label=metric.axis,
            y_unit=metric.unit,
        )


def _client_chart(run: RunFiles) -> Chart:
    scored = [(v, row) for row in run.clients if (v := as_number(row["personal_accuracy"])) is not None]
    scored.sort(key=lambda pair: pair[0])
    values = [value for value, _ in scored]
    few = len(values) <= MOST_CLIENTS
    names = tuple(f"client {row.get('name', '')}, {row.get('test_samples', '?')} test samples" for _, row in scored)
    mark = "Each mark is a client" if few else "The curve runs through all clients"
    return LineChart(
        name="clients",
        title="Accuracy of every client",
        reads=f"{mark}, from the worst on the left to the best on the right; a flat line near the top means that "
        "everyone is served well.",
        sources=("clients.csv",),
        lines=(Line("personal accuracy", range(1, len(values) + 1), values),),
        x_label="clients in order of accuracy",
        y_label="accuracy",
        dots=few,
        nearest=True,
        names=names,
    )


def split_chart(run: RunFiles) -> Chart:
    """The class-by-client picture of a split; beyond MOST_CLIENTS an even choice of clients."""
    assert run.split is not None
    counts, classes = run.split["train"], [str(name) for name in run.split["class_names"]]
    known = run.split.get("client_names")
    names = [str(name) for name in known] if known else [str(i) for i in range(len(counts))]
    shown = list(range(len(counts)))
    more = ""
    if len(counts) > MOST_CLIENTS:
        shown = [round(i * (len(counts) - 1) / (MOST_CLIENTS - 1)) for i in range(MOST_CLIENTS)]
        more = f" Shown are {MOST_CLIENTS} of {len(counts):,} clients, evenly chosen."
    return CellChart(
        name="split",
        title="Who holds which classes",
        reads="Training samples of each class (a row) at each client (a column); the darker a cell, the more samples, "
        "an empty one has none." + more,
        sources=("split.json",),
        cells=tuple(tuple(counts[i][c] for i in shown) for c in range(len(classes))),
        row_names=tuple(classes),
        column_names=tuple(names[i] for i in shown),
        x_label="client",
        y_label="class",
    )


# -- tables -----------------------------------------------------------------------------------------------------

_CLIENT_COLUMNS: dict[str, tuple[str, Unit]] = {
    "name": ("Client", "integer"),
    "train_samples": ("Training samples", "integer"),
    "test_samples": ("Test samples", "integer"),
    "classes": ("Classes", "integer"),
    "rounds": ("Rounds it took part in", "integer"),
    "personal_accuracy": ("Accuracy", "percent"),
    "global_accuracy": ("Global accuracy", "percent"),
    "test_loss": ("Test loss", "number"),
}


def _client_table(run: RunFiles) -> str:
    keys = [k for k in _CLIENT_COLUMNS if any(row.get(k) for row in run.clients)]
    columns = [Column(_CLIENT_COLUMNS[key][0], key != "name") for key in keys]
    rows = [
        [Cell(row[key]) if key == "name" else Cell.of(_whole(row[key]), _CLIENT_COLUMNS[key][1], key) for key in keys]
        for row in run.clients[:MOST_CLIENTS]
    ]
    count = len(run.clients)
    shown = f"the first {MOST_CLIENTS} of {count:,} clients" if count > MOST_CLIENTS else f"all {count:,} clients"
    body = table("Clients", columns, rows, ["clients.csv"])
    return f"<details><summary>Table of {shown}</summary>{body}</details>"


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
    parts.append(table("Machine", [Column("Machine"), Column("")], rows, ["summary.json"], sortable=False))
    again = (
        "<p>Again, with the same numbers: <code>commonground train --config config.toml --out NEW_FOLDER</code></p>"
        if run.config
        else ""
    )
    return again + '<div class="two">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)))
    return found
