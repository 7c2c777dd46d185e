"""The commands ``reproduce`` and ``report``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from commonground.catalogue import check_experiment
from commonground.cli.completion import complete_experiment
from commonground.cli.parameters import Finite, NameChoice
from commonground.counted import counted
from commonground.errors import ConfigError, Interrupted, RunError
from commonground.existing import check_folder
from commonground.literals import assigned
from commonground.name_lists import names_in
from commonground.table import Column, Table

if TYPE_CHECKING:
    from commonground.papers.experiment import Experiment
    from commonground.papers.outcome import Claim, Outcome
    from commonground.papers.request import Request
    from commonground.papers.tables.merge import Conflict

__all__ = ["report", "reproduce"]


@click.command(
    short_help="A paper's experiment, reported beside measured.",
    epilog='Example: commonground reproduce fedrep-table1 --scale paper --columns "CIFAR-10 (100, 2)" '
    "--methods fedrep,fedper --seeds 3 --out table1",
)
@click.argument("experiment", required=False, shell_complete=complete_experiment)
@click.option("--scale", type=NameChoice(["small", "paper"]), help="[default: small; of --paper-tables: paper]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="first seed")
@click.option("--seeds", type=click.IntRange(1), help="number of seeds  [default: the experiment's own]")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="another setting than the experiment's, also by the papers' letters (d, k, n)",
)
@click.option("--columns", multiple=True, metavar="LABEL", help="of a table: measure this column (may be repeated)")
@click.option("--methods", help="of a table: measure these methods, separated by commas")
@click.option("--variants", help="of a table: measure with one thing changed, separated by commas (`paper`: with none)")
@click.option("--minutes", type=Finite(0, min_open=True), help="stop after so long; the same command goes on")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="of a table: processes that measure its runs side by side, with a share of the cores each",
)
@click.option("--out", type=click.Path(path_type=Path), help="folder for results, figures and runs")
@click.option("--data-dir", help="folder of the data files")
@click.option("--device", default="cpu", show_default=True, metavar="auto|cpu|cuda[:i]|mps", help="what computes")
@click.option(
    "--precision",
    type=NameChoice(["fp32", "tf32", "bf16"]),
    default="fp32",
    show_default=True,
    help="of a table: how the runs' products are computed; each cell says it",
)
@click.option("--paper-tables", is_flag=True, help="measure the next missing cells of the papers' tables, in OUT")
@click.option(
    "--other-seeds",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="say which verdicts in OUT change in this folder, of the same experiment from another first seed",
)
@click.option(
    "--merge",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="add the cells of this folder, of the same table and measured elsewhere, to those in OUT (may be repeated)",
)
@click.option(
    "--on-conflict",
    type=NameChoice(["refuse", "keep", "replace"]),
    default="refuse",
    show_default=True,
    help="of --merge: what becomes of OUT's cell where a folder has another result",
)
@click.option(
    "--status",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="say which cells of a table (or of the tables in it) are there",
)
@click.option(
    "--rerun",
    "rerun_of",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="measure cells of a table's folder again, drawn by --seed, in the folder OUT, and compare them digit by "
    "digit; exits with 1 if an accuracy differs",
)
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="of --rerun: so many are drawn")
@click.option(
    "--summary", type=click.Path(path_type=Path), metavar="FOLDER", help="write the page of all results below a folder"
)
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def reproduce(
    experiment: str | None,
    scale: str | None,
    seed: int,
    seeds: int | None,
    assignments: tuple[str, ...],
    columns: tuple[str, ...],
    methods: str | None,
    variants: str | None,
    minutes: float | None,
    jobs: int,
    out: Path | None,
    data_dir: str | None,
    device: str,
    precision: str,
    paper_tables: bool,
    other_seeds: tuple[Path, ...],
    merge: tuple[Path, ...],
    on_conflict: Conflict,
    status: Path | None,
    rerun_of: Path | None,
    runs: int,
    summary: Path | None,
    quiet: bool,
) -> None:
    """Repeat EXPERIMENT (see `commonground list experiments`) and judge the paper's claims.

    `--scale small` fits on two cores, mostly in under 20 minutes (RoLoRA's Figures 4 and 5 take over an hour),
    and says what it reduced; `--scale paper` is the paper's own setting. The same command again continues where it was
    stopped. A table is filled cell by cell: what is asked for is added to what is there.
    """
    if experiment is not None:
        check_experiment(experiment)
    _check_reading(click.get_current_context())
    if status is not None:
        _say_status(status)
    if summary is not None:
        _write_summary(summary, quiet)
    if status is not None or summary is not None:
        return
    if out is None:
        raise ConfigError("--out is missing: name the folder for results, figures and runs")
    if other_seeds:
        _compare_seeds(out, other_seeds, quiet)
    if merge:
        _merge(out, merge, on_conflict, quiet)
    if other_seeds or merge:
        return
    settings = assigned(assignments)
    if experiment is None and not paper_tables and rerun_of is None:
        raise ConfigError(
            "name an experiment (commonground list experiments), for example: commonground reproduce fedrep-table1 "
            "--out table1"
        )
    from commonground.papers.request import Request

    request = Request(
        out,
        "paper" if scale == "paper" or (paper_tables and scale is None) else "small",
        seed,
        seeds,
        data_dir,
        quiet,
        settings,
        precision=precision,
        columns=columns,
        methods=names_in(methods),
        variants=names_in(variants),
        minutes=minutes,
        jobs=jobs,
    )
    if rerun_of is not None:
        if experiment is not None or settings or seeds or (scale, device, precision) != (None, "cpu", "fp32"):
            raise ConfigError("--rerun takes experiment, settings and device from the cells themselves; leave them out")
        if paper_tables:
            raise ConfigError("give either --rerun or --paper-tables")
        if jobs != 1:
            raise ConfigError("--rerun measures one run after the other; leave out --jobs")
        _measure_again(rerun_of, request, runs)
    elif paper_tables:
        _next_cells(request, experiment, device)
    elif experiment is not None:
        _one(request, experiment, device)


READS = {"status": (), "summary": ("quiet",), "other_seeds": ("out", "quiet"), "merge": ("out", "on_conflict", "quiet")}
"""Options that measure nothing, and those that they have a use for."""
ONLY_WITH = {"on_conflict": "merge", "runs": "rerun_of"}


def _check_reading(context: click.Context) -> None:
    """Refuse an experiment and options that nothing is made of.

    Raises:
        ConfigError: there is one.
    """
    called = {each.name: each.opts[0] for each in context.command.params} | {"experiment": "the experiment"}
    given = [n for n in context.params if context.get_parameter_source(n) == ParameterSource.COMMANDLINE]
    for name, other in ONLY_WITH.items():
        if name in given and other not in given:
            raise ConfigError(f"{called[name]} is for {called[other]}; leave it out")
    reading = [name for name in given if name in READS]
    if len(reading) > 1:
        raise ConfigError(f"{called[reading[0]]} and {called[reading[1]]} are two commands; give one of them at a time")
    for name in given:
        if reading and name not in (*reading, *READS[reading[0]]):
            raise ConfigError(
                f"{called[reading[0]]} measures nothing, it works with what is there; leave out {called[name]} or it"
            )


def _one(request: Request, name: str, device: str) -> None:
    """Carry out one experiment and show what it found."""
    from commonground.papers import experiments

    chosen = experiments[name]
    plain = type(request)(request.folder)
    for option in ("columns", "methods", "variants", "minutes", "jobs", "precision"):
        if getattr(request, option) != getattr(plain, option) and chosen.table is None:
            raise ConfigError(f"--{option} is for tables that are filled cell by cell, which {name} is not")
    # A table's folder grows: other seeds are other cells.
    fixed = {"seed": request.seed, "seeds": request.seeds} if chosen.table is None else {}
    changed = sorted(f"{key}={value}" for key, value in request.overrides.items())
    _check_free(request.folder, name, {"scale": request.scale, **fixed, "set": changed}, cells=chosen.table is not None)
    _carry_out(_on(request, chosen, device), chosen)


def _on(request: Request, chosen: Experiment, device: str) -> Request:
    """What is asked for, on a device that is there and can compute like that."""
    from commonground.precision import check_precision, slow_precision
    from commonground.terminal import say

    place = chosen.device(device)
    check_precision(request.precision, "float32", place)
    if not request.quiet and (slow := slow_precision(request.precision, place)):
        say(slow)
    return replace(request, device=place)


def _carry_out(request: Request, chosen: Experiment) -> None:
    from commonground.engine.interrupt import more_runs
    from commonground.papers.writing import about, write_outcome
    from commonground.report import write_reproduction_report
    from commonground.terminal import standard_output

    began = time.perf_counter()
    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    if chosen.table is not None:
        from commonground.papers.tables.cells import CellStore
        from commonground.papers.tables.judge import asked_for, there

        asked_for(chosen.table, request)  # what cannot be measured leaves no folder
        alone = CellStore(request.folder).alone
        with alone():  # first of all, so that a folder of cells says whose they are however this ends
            write_outcome(there(chosen.table, request), chosen, about(request, chosen, 0.0), request.folder)
    try:
        with more_runs():
            outcome = chosen.run(request)
    except KeyboardInterrupt:
        kept = chosen.table is not None or (request.folder / "runs").is_dir()  # what is there else is of earlier
        goes_on = "continues" if kept else "begins anew, for nothing is kept"
        raise Interrupted("stopped", f"the same command {goes_on}") from None
    outcome.leave_out_undefined()
    with alone():
        if chosen.table is not None:  # with what other processes have added meanwhile
            now = there(chosen.table, request)
            now.notes += [note for note in outcome.notes if note not in now.notes]
            outcome = now
        write_outcome(outcome, chosen, about(request, chosen, time.perf_counter() - began), request.folder)
        page = write_reproduction_report(request.folder)
    if request.quiet:
        return
    console = standard_output()
    if outcome.cells:
        title = f"{chosen.source} (scale {request.scale}): paper | measured, percent"
        console.print(_cells(outcome, title).to_rich())
    if outcome.claims:
        console.print(_claims(outcome).to_rich())
    for note in outcome.notes:
        console.print(f"• {note}")
    console.print(f"report: {page}")


def _next_cells(request: Request, experiment: str | None, device: str) -> None:
    """The papers' tables, stage by stage, each in a folder of its own."""
    from commonground.papers import experiments
    from commonground.papers.tables.queue import next_stage, stages

    given = experiment is not None or request.columns or request.methods or request.variants or request.seeds
    if given or request.overrides:
        raise ConfigError("--paper-tables chooses experiments, columns, methods and seeds itself; leave them out")
    until = request.until
    tables = {name: one.table for name, one in experiments.items() if one.table is not None}
    for table, stage in stages(tables):
        folder = request.folder / table.name
        left = None if until is None else (until - time.monotonic()) / 60
        if left is not None and left <= 0:
            break
        if next_stage(table.at_scale(request.scale), stage, folder):
            chosen = experiments[table.name]
            _check_free(folder, table.name, {"scale": request.scale, "set": []}, cells=True)
            asked = replace(request, folder=folder, columns=stage.columns, seeds=stage.seeds, minutes=left)
            _carry_out(_on(asked, chosen, device), chosen)


def _say_status(folder: Path) -> None:
    """Which cells of the tables in a folder are there, and what is missing."""
    from commonground.papers.tables.status import status_lines, tables_in
    from commonground.terminal import standard_output

    console = standard_output()
    for one in tables_in(folder):
        table, lines = status_lines(one)
        console.print(*table.to_fit(console), *lines, sep="\n")


def _measure_again(folder: Path, request: Request, count: int) -> None:
    """Cells measured again beside those that a folder keeps."""
    from commonground.papers.tables.rerun import measured_again, rerun, rerun_table
    from commonground.papers.tables.rerun_file import in_words, write_reruns
    from commonground.terminal import standard_output

    check_folder(request.folder)
    found, notes = rerun(folder, request, count)
    write_reruns(request.folder, rerun_table(measured_again(folder, request.folder)))
    if not request.quiet:
        console = standard_output()
        table = rerun_table(found)
        if found:
            shown = tuple(column for column in table.columns if column.name != "computed with")  # long, and often alike
            console.print(replace(table, columns=shown).to_rich())
            notes += [
                f"Computed with {said}." for said in dict.fromkeys("; ".join(one.changed) for one in found) if said
            ]
        for note in notes:
            console.print(f"• {note}")
        if found:
            console.print(in_words(table.rows))
    if not all(one.same_accuracies for one in found):
        raise click.exceptions.Exit(1)


def _compare_seeds(folder: Path, others: tuple[Path, ...], quiet: bool) -> None:
    """Which verdicts change with the first seed."""
    from commonground.papers.other_seeds import FILE, write_other_seeds

    changed = write_other_seeds(folder, others)
    if quiet:
        return
    for text in changed:
        print(f"changes: {text}")
    verdicts = f"{counted(len(changed), 'verdict')} change{'s' if len(changed) == 1 else ''}"
    print(f"{verdicts} over {len(others) + 1} first seeds; all are in {folder / FILE}")


def _merge(folder: Path, others: tuple[Path, ...], on_conflict: Conflict, quiet: bool) -> None:
    """The cells of other folders, added to a table's."""
    from commonground.papers.tables.merge import merge_cells
    from commonground.report import write_reproduction_report

    check_folder(folder)
    merged = merge_cells(folder, others, on_conflict)
    page = write_reproduction_report(folder)
    if not quiet:
        added, replaced, left = map(len, (merged.added, merged.replaced, merged.left))
        print(f"{counted(added, 'cell')} added, {replaced} replaced, {left} left as they were; report: {page}")


def _write_summary(folder: Path, quiet: bool) -> None:
    """All results below a folder, on a page and as texts."""
    from commonground.papers.summary import write_summary

    for path in write_summary(folder):
        if not quiet:
            print(f"written: {path}")


def _cells(outcome: Outcome, title: str) -> Table:
    """A paper's table, a row per method and a column per partition."""
    rows = {method: {"method": method} for method in dict.fromkeys(cell.method for cell in outcome.cells)}
    for cell in outcome.cells:
        paper = "–" if cell.paper is None else f"{cell.paper:g}"  # as it is printed
        within = "" if cell.low is None or cell.high is None else f" [{cell.low:.1f}, {cell.high:.1f}]"
        rows[cell.method][cell.column] = f"{paper} | {cell.measured:.1f}{within}"
    return Table.of(title, list(rows.values()))


def _claims(outcome: Outcome) -> Table:
    """The claims with their verdicts."""
    from commonground.report.format import show

    columns = tuple(map(Column, ("claim", "paper", "measured (95 %)", "holds")))
    rows = [
        {
            "claim": claim.claim,
            "paper": claim.paper if isinstance(claim.paper, str) else show(claim.paper),
            "measured (95 %)": _with_interval(claim),
            "holds": {True: "yes", False: "no", None: "open"}[claim.holds],
        }
        for claim in outcome.claims
    ]
    return Table("Claims", columns, rows)


def _with_interval(claim: Claim) -> str:
    from commonground.report.format import show_with_interval

    if claim.seeds < 2:
        return f"{show_with_interval(claim.measured, None, None)[0]} (one seed)"
    measured, low, high = show_with_interval(claim.measured, claim.low, claim.high)
    return f"{measured} [{low}, {high}]"


def _check_free(out: Path, experiment: str, asked: Mapping[str, Any], *, cells: bool) -> None:
    """Refuse a folder with another experiment, or the same one with other settings; of one that is filled by `cells`,
    also a folder with claims and without any: the first cell would take their place.
    """
    check_folder(out)
    file = out / "reproduction.json"
    try:
        there = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        from commonground.papers.tables.rerun_file import ORIGIN

        if (out / ORIGIN).is_file():
            raise RunError(f"'{out}' holds cells measured again (--rerun); choose another --out") from None
        return
    except (OSError, ValueError):
        raise RunError(f"'{file}' is not readable; choose another --out") from None
    if there.get("experiment") != experiment:
        raise RunError(f"'{out}' already holds {there.get('experiment')}, not {experiment}; choose another --out")
    for name, value in asked.items():
        if name in there and there[name] != value:
            was, now = ("none" if v is None or v == [] else v for v in (there[name], value))
            raise RunError(f"'{out}' holds {experiment} with --{name} {was}, not {now}; choose another --out")
    if cells and there.get("claims") and not (out / "cells.csv").is_file():
        raise RunError(
            f"'{out}' holds {experiment} as an earlier version measured it, which kept no cells; choose another --out"
        )


@click.command(
    short_help="Write a folder's report.html anew.",
    epilog="Example: commonground report runs/first runs/compared",
)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False))
def report(folders: tuple[Path, ...]) -> None:
    """Write report.html for each of FOLDERS: runs, comparisons or reproductions."""
    from commonground.report import write_report

    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"'{folder}' is not a folder")
        print(write_report(folder))
