"""``commonground train``: one run, with a folder of its files."""

from __future__ import annotations

import itertools
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonground.catalogue import check_declared, check_method
from commonground.cli.completion import complete_algorithm
from commonground.cli.help import SectionedCommand
from commonground.cli.options import check_early, run_options, run_values
from commonground.errors import ConfigError
from commonground.existing import check_folder
from commonground.quoting import folder_name
from commonground.terminal import say, standard_output

if TYPE_CHECKING:
    from commonground.config import RunConfig
    from commonground.data import FederatedDataset

__all__ = ["train"]


@click.command(
    cls=SectionedCommand,
    short_help="Train one algorithm.",
    epilog="Example: commonground train fedrep --data digits --clients 20 --classes-per-client 2 --rounds 30",
)
@click.argument("algorithm", required=False, shell_complete=complete_algorithm)
@run_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="folder for the run's files  [default: a new one in runs/]"
)
@click.option("--resume", is_flag=True, help="continue the run in --out from its last checkpoint")
@click.option(
    "--dry-run",
    is_flag=True,
    help="say what would be done and what it takes (a few rounds are timed); nothing is written",
)
@click.option("--json", "as_json", is_flag=True, help="with --dry-run: print JSON")
@click.option(
    "--allow-other-numerics",
    is_flag=True,
    help="continue it with other threads, precision or device than before, and so with other last bits",
)
def train(
    algorithm: str | None,
    assignments: tuple[str, ...],
    config_file: Path | None,
    data_dir: str | None,
    track: tuple[str, ...],
    quiet: bool,
    out: Path | None,
    resume: bool,
    dry_run: bool,
    as_json: bool,
    allow_other_numerics: bool,
    **flags: Any,
) -> None:
    """Train ALGORITHM (see `commonground list algorithms`) and leave a folder with everything about the run."""
    from commonground.config import RunConfig

    values = run_values(flags, assignments, config_file)
    check_early(values)
    if algorithm is not None:
        values["algorithm"] = check_method(algorithm)
    if resume and out is None:
        raise ConfigError("--resume needs --out, the folder of the run to continue")
    if allow_other_numerics and not resume:
        raise ConfigError("--allow-other-numerics is of a run that is continued; add --resume, or leave it out")
    if as_json and not dry_run:
        raise ConfigError("--json prints what --dry-run finds; add --dry-run")
    if not resume and "algorithm" not in values:
        raise ConfigError("name an algorithm, for example: commonground train fedrep --data digits --clients 20")
    if out is not None:
        check_folder(out)
    # So that a wrong setting is told at once: what follows loads PyTorch.
    check_declared(values.get("algorithm", ""), RunConfig.make(values).options)
    from commonground.console import ConsoleProgress, result_note, result_table
    from commonground.engine.more_rounds import continued
    from commonground.engine.prepare import prepare_setup
    from commonground.engine.state.folder import RunFolder
    from commonground.engine.tracked import Tracking
    from commonground.engine.training import check_resumed, run_training
    from commonground.report import write_run_report
    from commonground.tasks.rank import assumed_way

    if resume and out is not None and RunFolder(out).exists:
        values = continued(RunFolder(out).config(), values)
    elif resume and "algorithm" not in values:
        raise ConfigError(f"'{out}' holds no run to continue")
    config = RunConfig.make(values)
    if out is None:
        out = _new_folder(config)
    elif not resume:
        RunFolder(out).check_free()
    tracking = Tracking(() if dry_run else track, out)
    setup = prepare_setup(config, data_dir=data_dir)
    if not quiet:
        for note in (*setup.data.about.get("notes", ()), *_dealt(config, setup.data)):
            say(f"{setup.data.name}: {note}")
        if assumed := assumed_way(config.rank_by, setup.own_metrics):
            say(assumed)
    if dry_run:
        from commonground.plan import plan_of, plan_table
        from commonground.precision import slow_precision

        if not quiet and (slow := slow_precision(config.precision, setup.device)):
            say(slow)
        if resume and RunFolder(out).exists:
            check_resumed(RunFolder(out), setup, allow_other_numerics)
            done = len(RunFolder(out).rounds.rows())
            say(f"{done} of {config.rounds} rounds are done; the plan is of all of them")
        plan = plan_of(setup, out)
        if as_json:
            print(json.dumps(plan.to_dict(), indent=2, ensure_ascii=False))
        else:
            standard_output().print(plan_table(plan, out))
        return
    observer = ConsoleProgress(quiet)
    with tracking.told_by(observer):
        run = run_training(
            setup,
            out=out,
            resume=resume,
            observer=observer,
            track=tracking,
            allow_other_numerics=allow_other_numerics,
        )
        tracking.artefact(write_run_report(out))
    if not quiet:
        console = standard_output()
        console.print(result_table(run))
        if note := result_note(run):
            console.print(note, markup=False)


def _dealt(config: RunConfig, data: FederatedDataset) -> list[str]:
    """Of a table: that nobody said whose its rows are."""
    said = (config.clients, config.partition, config.classes_per_client)
    if data.schema is None or data.schema.client_column is not None or any(said):
        return []
    return [f"rows are dealt at random to {data.clients} clients; --client-column NAME says whose each row is"]


def _new_folder(config: RunConfig) -> Path:
    """A folder below ``runs`` that there is not yet, named by the time, the method and the data."""
    name = folder_name(f"{datetime.now():%Y%m%d-%H%M%S}-{Path(config.algorithm).name}-{Path(config.data).stem}")
    names = (name if n == 1 else f"{name}-{n}" for n in itertools.count(1))
    return next(path for name in names if not (path := Path("runs") / name).exists())
