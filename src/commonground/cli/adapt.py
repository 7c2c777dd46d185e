"""The command ``adapt``: heads for clients that come after a run."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.table import Table

from commonground.cli.parameters import NameChoice, kinds_option, trust_code
from commonground.counted import counted
from commonground.errors import ConfigError
from commonground.existing import check_folder, check_run
from commonground.quoting import quoted
from commonground.ranges import MOST
from commonground.terminal import say, standard_output

if TYPE_CHECKING:
    from commonground.adapt.few_shot import Adaptation
    from commonground.data import FederatedDataset
    from commonground.engine.run import Run

__all__ = ["adapt"]


def _numbers(text: str, flag: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} takes whole numbers separated by commas, not '{text}'") from None


@click.command(
    short_help="Heads for new clients from few samples.",
    epilog="Example: commonground adapt runs/renewed --data newcomers.csv --shots 5,20",
)
@click.argument("run_dir", type=click.Path(path_type=Path, readable=False))
@click.option("--data", help="data of the new clients  [default: the run's]")
@click.option("--clients", type=click.IntRange(1, MOST), help="number of new clients  [default: as the run]")
@click.option("--classes-per-client", type=click.IntRange(1), help="classes per new client")
@click.option("--partition", help="iid, shards, labels, dirichlet:ALPHA, lognormal, features:H, column:NAME")
@click.option("--client-column", help="a table's column that says whose a row is  [default: as the run]")
@click.option("--separator", help="between a table's cells  [default: found]")
@click.option("--encoding", help="of a table's file  [default: found]")
@kinds_option
@click.option(
    "--missing-target",
    type=NameChoice(["refuse", "drop"]),
    help="a table's rows without a target: refuse the table, or leave them out  [default: as the run]",
)
@click.option(
    "--missing-client",
    type=NameChoice(["refuse", "drop"]),
    help="a table's rows without a client: refuse the table, or leave them out  [default: as the run]",
)
@click.option(
    "--feature-noise", type=float, help="how much of another client's image is subtracted  [default: as the run]"
)
@click.option("--shots", metavar="K[,K…]", help="training samples per new client; several give a curve")
@click.option(
    "--keep",
    is_flag=True,
    help="add the new clients to the run, each with a head from all its training samples: predict and export know them "
    "then",
)
@click.option(
    "--forget",
    multiple=True,
    metavar="NAME",
    help="take a client that was kept out of the run again, with its head and its tokens for a service (repeatable)",
)
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
    client_column: str | None,
    separator: str | None,
    encoding: str | None,
    kinds: str | None,
    missing_target: str | None,
    missing_client: str | None,
    feature_noise: float | None,
    shots: str | None,
    keep: bool,
    forget: tuple[str, ...],
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
    in mind that a split of the same data set shares its training samples. A table's columns are found by name and
    encoded as in the run. Clients with fewer training samples than the most --shots are left out and named.
    """
    check_run(run_dir)
    if forget:
        _forget(click.get_current_context(), run_dir, forget, trust_code=trust_code, quiet=quiet)
        return
    if shots is None and not keep:
        raise ConfigError("give --shots K[,K…], --keep, or both; or --forget NAME")
    if shots is None:
        _check_given(click.get_current_context(), {"out": "--out", "repeats": "--repeats", "per_class": "--per-class"})
    wanted = [] if shots is None else list(dict.fromkeys(_numbers(shots, "--shots")))
    if out is not None:
        check_folder(out)
    from commonground.adapt.few_shot import adapt as adapt_run
    from commonground.adapt.few_shot import check_has_head, known_clients
    from commonground.adapt.newcomers import newcomers
    from commonground.data.limits import with_enough
    from commonground.engine.run import load_run
    from commonground.report import write_run_report
    from commonground.tasks import Headline

    run = load_run(run_dir, trust_code=trust_code)
    check_has_head(run.trained.where, run.trained.task)
    new = newcomers(
        run,
        data,
        clients=clients,
        classes_per_client=classes_per_client,
        partition=partition,
        client_column=client_column,
        feature_noise=feature_noise,
        seed=seed,
        data_dir=data_dir,
        separator=separator,
        encoding=encoding,
        kinds=kinds,
        missing_target=missing_target,
        missing_client=missing_client,
    )
    if keep:
        _keep(run, new, epochs=epochs, lr=lr, seed=seed, quiet=quiet)
    if not wanted:
        return
    new, left = with_enough(new, max(wanted), per_class=per_class)
    left += [] if new.schema is None else new.schema.few_rows.get("clients", [])
    if not quiet:
        _say_of_clients(new, left, max(wanted))
    note = _hush if quiet else say
    results = adapt_run(
        run, new, wanted, epochs=epochs, lr=lr, repeats=repeats, seed=seed, per_class=per_class, note=note
    )
    folder = out or run_dir
    about = {"run": str(run_dir), "data": new.name, "clients": new.clients, "epochs": epochs, "seed": seed}
    about |= {"task": new.task.name, "metric": Headline.of(new.task).key, "left_out": left}
    if data is not None and (known := known_clients(run.trained, new)):
        about["trained_the_run"] = known
    _write(folder, about, [result.to_dict() for result in results])
    # A client of a network keeps its own model alone, of which there is no report.
    whole = all((run_dir / name).is_file() for name in ("summary.json", "rounds.jsonl"))
    page = write_run_report(run_dir) if folder == run_dir and whole else None
    if quiet:
        return
    console = standard_output()
    console.print(_curve(results, new, "shots per class" if per_class else "shots"))
    if data is None:
        console.print(f"The new clients' samples are dealt anew from {new.name}; the run has trained on some of them.")
    console.print(f"files: {folder / 'adapt.json'}, {folder / 'adapt.csv'}{f', {page}' if page else ''}")


def _forget(context: click.Context, run_dir: Path, names: Sequence[str], *, trust_code: bool, quiet: bool) -> None:
    """Take clients out of the run that were kept in it."""
    with_it = {"run_dir", "forget", "trust_code", "quiet"}
    for name in context.params:
        if name not in with_it and context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise ConfigError(f"--forget needs nothing but the run and names; leave out --{name.replace('_', '-')}")
    from commonground.adapt.forget import forget_clients
    from commonground.engine.run import load_run

    forget_clients(load_run(run_dir, trust_code=trust_code), names)
    if not quiet:
        its = "its head and its" if len(names) == 1 else "their heads and their"
        say(f"taken out of {run_dir}: {_first(names)}, with {its} tokens for a service")


def _check_given(context: click.Context, for_shots: Mapping[str, str]) -> None:
    """Refuse options of --shots where there is none."""
    for name, option in for_shots.items():
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise ConfigError(f"{option} is for --shots, and --keep has no use for it; leave it out or give --shots K")


def _write(folder: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """``adapt.json`` and ``adapt.csv``."""
    from commonground.engine.state.files import write_atomically

    write_atomically(folder / "adapt.json", json.dumps({**about, "results": rows}, indent=2) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / "adapt.csv", text.getvalue())


def _keep(run: Run, new: FederatedDataset, *, epochs: int, lr: float | None, seed: int, quiet: bool) -> None:
    """Add the new clients to the run, and say how well their heads do."""
    from commonground.adapt.keep import keep_clients
    from commonground.tasks import Headline

    kept = keep_clients(run, new, epochs=epochs, lr=lr, seed=seed)
    if quiet:
        return
    for note in new.about.get("notes", ()):
        say(f"{new.name}: {note}")
    left = [] if new.schema is None else new.schema.few_rows.get("clients", [])
    if left:
        who = f"{counted(len(left), 'client')} with a single row, of which none would test a head"
        say(f"{who}, left out: {_first(left)}")
    headline = Headline.of(new.task)
    several = len(kept.names) > 1
    again = f" (with new heads in place of earlier ones: {_first(kept.renewed)})" if kept.renewed else ""
    standard_output().print(
        f"{counted(len(kept.names), 'client')} added to the run: {_first(kept.names)}{again}; {headline.name} "
        f"{headline.show(kept.mean)} on {'their test samples, the mean over them' if several else 'its test samples'}"
    )


def _curve(results: Sequence[Adaptation], new: FederatedDataset, unit: str) -> Table:
    """A row per number of shots, a column per way of serving the new clients."""
    from commonground.tasks import Headline

    headline = Headline.of(new.task)
    methods = list(dict.fromkeys(result.method for result in results))
    several = new.clients > 1
    what = f"{headline.name}, mean ± std over clients" if several else headline.name
    who = f"{new.clients} new client{'s' if several else ''} of {new.name}"
    table = Table(unit, *methods, title=f"{who}: {what}")
    for k in dict.fromkeys(result.shots for result in results):
        at = [result for result in results if result.shots == k]
        spread = {r.method: headline.spread({"mean": r.mean, "std": r.std if several else None}) for r in at}
        cells = {method: f"{text}{headline.sign}" for method, text in spread.items()}
        table.add_row(str(k), *(cells.get(method, "–") for method in methods))
    return table


def _say_of_clients(new: FederatedDataset, left: Sequence[str], shots: int) -> None:
    """How a table was read, and which clients are left out."""
    for note in new.about.get("notes", ()):
        say(f"{new.name}: {note}")
    if left:
        say(
            f"left out for having too few samples for {shots} shots and a test: {counted(len(left), 'client')}, "
            f"{_first(left)}"
        )


def _first(names: Sequence[str], most: int = 5) -> str:
    """The first names of many."""
    return ", ".join(quoted(name) for name in names[:most]) + (", …" if len(names) > most else "")


def _hush(text: str) -> None:
    """Say nothing."""
