"""The commands ``reproduce`` and ``report``."""

from __future__ import annotations

import json
import platform
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonground.errors import ConfigError, RunError
from commonground.suggest import meant
from commonground.table import Column, Table

if TYPE_CHECKING:
    from commonground.papers.outcome import Outcome

__all__ = ["report", "reproduce"]


@click.command(short_help="A paper's experiment, reported beside measured.")
@click.argument("experiment")
@click.option("--scale", type=click.Choice(["small", "paper"]), default="small", show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="first seed")
@click.option("--seeds", type=click.IntRange(1), help="number of seeds  [default: the experiment's own]")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="another setting than the experiment's")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="folder for results, figures and runs")
@click.option("--data-dir", help="folder of the data files")
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    metavar="auto|cpu|cuda[:i]|mps",
    help="what computes",
)
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def reproduce(
    experiment: str,
    scale: str,
    seed: int,
    seeds: int | None,
    assignments: tuple[str, ...],
    out: Path,
    data_dir: str | None,
    device: str,
    quiet: bool,
) -> None:
    """Repeat EXPERIMENT (see `commonground list experiments`) and judge the paper's claims.

    `--scale small` fits on two cores, mostly in under 20 minutes (RoLoRA's Figures 4 and 5 take over an hour),
    and says what it reduced; `--scale paper` is the paper's own setting. The same command again continues where it was
    stopped.
    """
    import torch

    from commonground import __version__
    from commonground.console import standard_output
    from commonground.engine.backends.processes import default_workers
    from commonground.papers import experiments
    from commonground.papers.experiment import Request
    from commonground.papers.writing import write_outcome
    from commonground.report import write_reproduction_report

    if experiment not in experiments:
        raise ConfigError(
            f"unknown experiment '{experiment}'{meant(experiment, experiments)}; "
            f"known are {', '.join(sorted(experiments))}"
        )
    chosen = experiments[experiment]
    _check_free(out, experiment, {"scale": scale, "seed": seed, "seeds": seeds, "set": sorted(assignments)})
    place = chosen.device(device)
    overrides = dict(map(_setting, assignments))
    request = Request(out, "paper" if scale == "paper" else "small", seed, seeds, data_dir, quiet, overrides, place)
    began = time.perf_counter()
    outcome = chosen.run(request)
    cores = default_workers()
    about = {
        "scale": scale,
        "seed": seed,
        "seeds": seeds,
        "set": sorted(assignments),
        "command": shlex.join(
            ["commonground", "reproduce", experiment, "--scale", scale, "--seed", str(seed)]
            + ([] if seeds is None else ["--seeds", str(seeds)])
            + [part for assignment in assignments for part in ("--set", assignment)]
            + ([] if place.type == "cpu" else ["--device", str(place)])
            + ["--out", out.name]
        ),
        "minutes": round((time.perf_counter() - began) / 60, 1),
        **({} if place.type == "cpu" else {"device": str(place)}),
        "machine": f"{platform.system()} {platform.machine()}, {cores} core{'s' if cores != 1 else ''}",
        "versions": {
            "commonground": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }
    write_outcome(outcome, chosen, about, out)
    page = write_reproduction_report(out)
    if quiet:
        return
    console = standard_output()
    if outcome.cells:
        console.print(_cells(outcome, f"{chosen.source} (scale {scale}): paper | measured, percent").to_rich())
    console.print(_claims(outcome).to_rich())
    for note in outcome.notes:
        console.print(f"• {note}")
    console.print(f"report: {page}")


def _cells(outcome: Outcome, title: str) -> Table:
    """A paper's table, a row per method and a column per partition."""
    rows = {method: {"method": method} for method in dict.fromkeys(cell.method for cell in outcome.cells)}
    for cell in outcome.cells:
        paper = "–" if cell.paper is None else f"{cell.paper:.1f}"
        rows[cell.method][cell.column] = f"{paper} | {cell.measured:.1f} [{cell.low:.1f}, {cell.high:.1f}]"
    return Table.of(title, list(rows.values()))


def _claims(outcome: Outcome) -> Table:
    """The claims with their verdicts."""
    from commonground.report.format import show

    columns = tuple(map(Column, ("claim", "paper", "measured (95 %)", "holds")))
    rows = [
        {
            "claim": claim.claim,
            "paper": claim.paper if isinstance(claim.paper, str) else show(claim.paper),
            "measured (95 %)": f"{show(claim.measured)} [{show(claim.low)}, {show(claim.high)}]",
            "holds": {True: "yes", False: "no", None: "open"}[claim.holds],
        }
        for claim in outcome.claims
    ]
    return Table("Claims", columns, rows)


def _check_free(out: Path, experiment: str, asked: Mapping[str, Any]) -> None:
    """Refuse a folder with another experiment, or the same one with other settings."""
    if out.exists() and not out.is_dir():
        raise RunError(f"'{out}' is a file; --out needs a folder")
    file = out / "reproduction.json"
    try:
        there = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        raise RunError(f"'{file}' is not readable; choose another --out") from None
    if there.get("experiment") != experiment:
        raise RunError(f"'{out}' already holds {there.get('experiment')}, not {experiment}; choose another --out")
    for name, value in asked.items():
        if name in there and there[name] != value:
            was, now = ("none" if v is None or v == [] else v for v in (there[name], value))
            raise RunError(f"'{out}' holds {experiment} with --{name} {was}, not {now}; choose another --out")


def _setting(assignment: str) -> tuple[str, Any]:
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {assignment} is not of the form KEY=VALUE")
    from commonground.compare.methods import literal

    return key, literal(text)


@click.command(short_help="Write a folder's report.html anew.")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False))
def report(folders: tuple[Path, ...]) -> None:
    """Write report.html for each of FOLDERS: runs, comparisons or reproductions."""
    from commonground.report import write_report

    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"'{folder}' is not a folder")
        print(write_report(folder))
