"""The commands for finished runs: ``adapt`` and ``predict``."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from commonground.cli_options import trust_code
from commonground.errors import ConfigError
from commonground.ranges import MOST

__all__ = ["adapt", "predict"]


def _numbers(text: str, flag: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} takes whole numbers separated by commas, not '{text}'") from None


@click.command(short_help="Heads for new clients from few samples.")
@click.argument("run_dir", type=click.Path(path_type=Path, readable=False))
@click.option("--data", help="data of the new clients  [default: the run's]")
@click.option("--clients", type=click.IntRange(1, MOST), help="number of new clients  [default: as the run]")
@click.option("--classes-per-client", type=click.IntRange(1), help="classes per new client")
@click.option("--partition", help="iid, shards, labels, dirichlet:ALPHA, lognormal, features:H, column:NAME")
@click.option(
    "--feature-noise", type=float, help="how much of another client's image is subtracted  [default: as the run]"
)
@click.option("--shots", required=True, metavar="K[,K…]", help="training samples per new client; several give a curve")
@click.option("--per-class", is_flag=True, help="count the shots per class")
@click.option("--epochs", type=click.IntRange(1, MOST), default=30, show_default=True, help="passes over the samples")
@click.option("--lr", type=float, help="learning rate  [default: the run's]")
@click.option("--repeats", type=click.IntRange(1, 10_000), default=3, show_default=True, help="draws of the samples")
@click.option("--seed", type=click.IntRange(0), default=1000, show_default=True, help="seed of split and samples")
@click.option("--out", type=click.Path(path_type=Path), help="folder for adapt.json and adapt.csv  [default: RUN_DIR]")
@click.option("--data-dir", help="folder of the data files")
@trust_code
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def adapt(
    run_dir: Path,
    data: str | None,
    clients: int | None,
    classes_per_client: int | None,
    partition: str | None,
    feature_noise: float | None,
    shots: str,
    per_class: bool,
    epochs: int,
    lr: float | None,
    repeats: int,
    seed: int,
    out: Path | None,
    data_dir: str | None,
    trust_code: bool,
    quiet: bool,
) -> None:
    """Fit a head for clients that never took part on RUN_DIR's frozen body, beside what they could do alone.

    The new clients are dealt anew from --data with --seed; for samples the run has never seen, name other data or keep
    in mind that a split of the same data set shares its training samples.
    """
    from commonground.adapt.few_shot import adapt as adapt_run
    from commonground.console import standard_output
    from commonground.data import add_feature_noise, load_data
    from commonground.engine.prepare import reading
    from commonground.engine.run import load_run
    from commonground.engine.state.folder import write_atomically
    from commonground.report import write_run_report
    from commonground.tasks import Headline
    from commonground.user_code import is_code

    wanted = list(dict.fromkeys(_numbers(shots, "--shots")))
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"'{out}' is a file; --out needs a folder")
    run = load_run(run_dir, trust_code=trust_code)
    if data is None and is_code(run.config.data) and not trust_code:
        raise ConfigError(
            f"the run in '{run_dir}' has the data '{run.config.data}', whose code would be run: if you trust that "
            "file, say so with --trust-code, or name other data with --data"
        )
    new = load_data(
        data or run.config.data,
        clients or (None if partition and partition.startswith("column") else run.trained.clients),
        classes_per_client=classes_per_client or (None if partition else run.config.classes_per_client),
        partition=partition,
        seed=seed,
        data_dir=data_dir,
        label=run.config.target or "label",
        task=run.config.task,
        **reading(run.config, data),
    )
    if new.name.endswith((".csv", ".tsv")) and not new.tokens and new.sample_shape == run.trained.format.sample_shape:
        # A body reads features as they were scaled in training, not by the new table's own means and deviations.
        new = replace(new, preprocess=run.trained.format.preprocess)
        if new.task.name == run.trained.task.name:
            new = replace(new, task=run.trained.task)
    new = add_feature_noise(new, run.config.feature_noise if feature_noise is None else feature_noise, seed)
    results = adapt_run(run, new, wanted, epochs=epochs, lr=lr, repeats=repeats, seed=seed, per_class=per_class)
    rows = [result.to_dict() for result in results]
    folder = out or run_dir
    headline = Headline.of(new.task)
    about = {"run": str(run_dir), "data": new.name, "clients": new.clients, "epochs": epochs, "seed": seed}
    about |= {"task": new.task.name, "metric": headline.key}
    write_atomically(folder / "adapt.json", json.dumps({**about, "results": rows}, indent=2) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "adapt.csv", text.getvalue())
    page = write_run_report(run_dir) if folder == run_dir and (run_dir / "summary.json").is_file() else None
    if quiet:
        return
    methods = list(dict.fromkeys(result.method for result in results))
    unit = "shots per class" if per_class else "shots"
    what = f"{headline.name}, mean ± std over clients"
    table = Table(unit, *methods, title=f"{new.clients} new clients of {new.name}: {what}")
    for k in wanted:
        spread = {r.method: headline.spread({"mean": r.mean, "std": r.std}) for r in results if r.shots == k}
        cells = {method: f"{text}{headline.sign}" for method, text in spread.items()}
        table.add_row(str(k), *(cells.get(method, "–") for method in methods))
    console = standard_output()
    console.print(table)
    if data is None:
        console.print(f"The new clients' samples are dealt anew from {new.name}; the run has trained on some of them.")
    console.print(f"files: {folder / 'adapt.json'}, {folder / 'adapt.csv'}{f', {page}' if page else ''}")


@click.command(short_help="One client's model on new inputs.")
@click.argument("run_dir", type=click.Path(path_type=Path, readable=False))
@click.option("--client", help="the client's name or number")
@click.option("--global", "use_global", is_flag=True, help="use the global model instead")
@click.option(
    "--input",
    "input_file",
    required=True,
    type=click.Path(path_type=Path),
    help=".npy or .csv of samples; for texts .tsv, .csv, .jsonl or .txt",
)
@click.option(
    "--max-new-tokens", type=click.IntRange(1), help="most tokens of a language model's answer  [default: 64]"
)
@click.option("--out", type=click.Path(path_type=Path), help="write the CSV here  [default: standard output]")
@trust_code
def predict(
    run_dir: Path,
    client: str | None,
    use_global: bool,
    input_file: Path,
    max_new_tokens: int | None,
    out: Path | None,
    trust_code: bool,
) -> None:
    """Classify new samples with one client's own model from RUN_DIR, predict their numbers or labels, or let a language
    model answer.

    Samples are stored as the training data is: one row of numbers per sample (.csv; columns in the training table's
    order without label and client, a header is skipped), or an array [samples, …] (.npy; images as height × width ×
    channels). Prints a line per sample: its class and the probability; the predicted numbers; or its labels and the
    probability of each.

    Texts are a column of a table with a header (.tsv, .csv), a field of the objects in a .jsonl file, or the lines of a
    .txt file; pairs are two columns, named as in GLUE. A language model takes instructions (.json, .jsonl, a table with
    a column instruction, .txt) and answers greedily.
    """
    from commonground.adapt.predictors import predictor_of
    from commonground.engine.run import load_run
    from commonground.engine.state.folder import write_atomically

    if (client is None) == (not use_global):
        raise ConfigError("give either --client ID or --global")
    run = load_run(run_dir, trust_code=trust_code)
    number = None if client is None else run.trained.client(client)
    if not (run_dir / "summary.json").is_file():
        _say(f"the run in '{run_dir}' is not finished: these are its models at the last checkpoint")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header, rows = predictor_of(run, max_new_tokens).table(input_file, number, _say)
    writer.writerow(["sample", *header])
    writer.writerows([i, *row] for i, row in enumerate(rows))
    if out is not None:
        write_atomically(out, text.getvalue())
    else:
        print(text.getvalue(), end="")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
