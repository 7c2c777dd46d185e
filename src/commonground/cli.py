"""The command: parses, calls, prints. A wrong command or input exits with 2, an interrupted run with 130."""

from __future__ import annotations

import itertools
import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import shell_complete

from commonground.access import reason
from commonground.catalogue import check_declared, check_method
from commonground.cli_adapt import adapt
from commonground.cli_compare import compare
from commonground.cli_completion import completion
from commonground.cli_deploy import deploy
from commonground.cli_doctor import doctor
from commonground.cli_export import export
from commonground.cli_help import SectionedCommand
from commonground.cli_list import list_
from commonground.cli_options import check_early, run_options, run_values
from commonground.cli_predict import predict
from commonground.cli_reproduce import report, reproduce
from commonground.cli_serve import serve
from commonground.cli_tables import example, inspect
from commonground.completion import VARIABLE, complete_algorithm
from commonground.errors import AggregateError, CommonGroundError, ConfigError
from commonground.existing import check_folder
from commonground.quoting import folder_name, visible
from commonground.stopping import stops_raise
from commonground.terminal import say, standard_output
from commonground.wording import naming_options

if TYPE_CHECKING:
    from commonground.config import RunConfig
    from commonground.data import FederatedDataset


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="commonground")
def cli() -> None:
    """Federated representation learning: many clients, one shared representation, a model for each."""


@cli.command(
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


@cli.command(short_help="See the point in a minute.", epilog="Example: commonground demo --seeds 1")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="number of seeds")
@click.option("--rounds", default=30, show_default=True, type=click.IntRange(1), help="number of rounds of training")
@click.option("--quiet", is_flag=True, help="print the table alone")
def demo(seeds: int, rounds: int, quiet: bool) -> None:
    """Local Only, FedAvg, FedPer and FedRep side by side on real handwritten digits."""
    from commonground.demo import run_demo

    run_demo(seeds, quiet, rounds)


for command in (
    list_, compare, adapt, predict, export, serve, deploy, reproduce, report, inspect, example, doctor, completion,
):  # fmt: skip
    cli.add_command(command)


_CONTINUED = {
    "train": "; continue with --resume",
    "compare": "; the same command continues",
    "reproduce": "; the same command continues",
}


@naming_options()
def main(args: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 2 for anything wrong with the command or its input, or 130 for an interrupted run; 1 for one whose server
        made something that is not finite of usable updates, and where ``doctor`` finds something broken.
    """
    given = list(sys.argv[1:] if args is None else args)
    if args is None and VARIABLE in os.environ:
        return shell_complete(cli, {}, "commonground", VARIABLE, os.environ[VARIABLE])
    try:
        # Not cli.main(), which prints an empty line of its own on Ctrl-C.
        with stops_raise(), cli.make_context("commonground", list(given)) as context:
            cli.invoke(context)
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.ClickException as error:
        print(f"commonground: {visible(_cut(error.format_message()))}", file=sys.stderr)
        return 2
    except CommonGroundError as error:
        print(f"commonground: {visible(' '.join(str(error).split()))}", file=sys.stderr)
        return 1 if isinstance(error, AggregateError) else 2
    except (KeyboardInterrupt, click.Abort):
        print(f"commonground: interrupted{_CONTINUED.get(next(iter(given), ''), '')}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`commonground list data | head -1`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        print("commonground: this needs more memory than there is; take smaller sizes", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None and _output_is_full():
            print(f"commonground: standard output took no more: {error.strerror}", file=sys.stderr)
            return 2
        # A full disk, a folder that may not be written to, ….
        where = f"'{error.filename}': " if error.filename else ""
        why = reason(error, error.filename) if isinstance(error.filename, str) else error.strerror or error
        print(f"commonground: {visible(f'{where}{why}')}", file=sys.stderr)
        return 2


def _output_is_full() -> bool:
    """Whether standard output takes nothing more; what is left for it is dropped then, which Python would try again."""
    try:
        print(flush=True)  # what failed to be flushed is not tried again by flushing alone
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _cut(text: str) -> str:
    """A message in one line, without the thousands of characters that a value in it may have."""
    line = " ".join(text.split())
    return line if len(line) <= 1000 else f"{line[:1000]}…"


def _out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; PyTorch raises a RuntimeError that only its text tells apart."""
    return isinstance(error, MemoryError) or "you tried to allocate" in str(error)


if __name__ == "__main__":
    sys.exit(main())
