"""What a reproduction leaves in its folder."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from commonground.engine.state.files import write_atomically
from commonground.papers.experiment import Experiment
from commonground.papers.outcome import Outcome
from commonground.papers.provenance import commit, version
from commonground.papers.request import Request
from commonground.processor import processor
from commonground.report.format import slug

__all__ = ["about", "about_of", "write_outcome"]

OUTCOME = ("experiment", "title", "source", "settings", "notes", "claims", "cells", "tables", "curves")
"""What ``reproduction.json`` holds beside how an experiment was carried out."""


def about(request: Request, experiment: Experiment, seconds: float) -> dict[str, Any]:
    """How an experiment was carried out: settings, command, machine, minutes and versions.

    Args:
        request: what was asked for.
        experiment: which one.
        seconds: that it took; a table's cells have their own minutes.
    """
    import torch

    from commonground.engine.backends.processes import default_workers

    changed = sorted(f"{key}={value}" for key, value in request.overrides.items())
    cores, device = default_workers(), str(request.device)
    return {
        "scale": request.scale,
        "seed": request.seed,
        "seeds": request.seeds,
        "set": changed,
        "command": _command(request, experiment, changed),
        "minutes": round(seconds / 60, 1),
        **({} if device == "cpu" else {"device": device}),
        **({} if request.precision == "fp32" else {"precision": request.precision}),
        "machine": f"{platform.system()}, {processor()}, {cores} core{'s' if cores != 1 else ''}",
        "commit": commit(),
        "versions": {"commonground": version(), "python": platform.python_version(), "torch": torch.__version__},
    }


def _command(request: Request, experiment: Experiment, changed: list[str]) -> str:
    parts = ["commonground", "reproduce", experiment.name, "--scale", request.scale, "--seed", str(request.seed)]
    parts += [] if request.seeds is None else ["--seeds", str(request.seeds)]
    parts += [part for label in request.columns for part in ("--columns", label)]
    for option in ("methods", "variants"):
        parts += [f"--{option}", ",".join(getattr(request, option))] if getattr(request, option) else []
    parts += [part for assignment in changed for part in ("--set", assignment)]
    parts += [] if request.device.type == "cpu" else ["--device", str(request.device)]
    parts += [] if request.precision == "fp32" else ["--precision", request.precision]
    return shlex.join([*parts, "--out", request.folder.name])


def about_of(everything: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`about` said, of what ``reproduction.json`` holds."""
    return {name: value for name, value in everything.items() if name not in OUTCOME}


def write_outcome(outcome: Outcome, experiment: Experiment, about: Mapping[str, Any], folder: Path) -> None:
    """Write ``results.json`` (the claims), ``claims.csv``, ``table.csv`` (a paper's table), a CSV file for every other
    table, and ``reproduction.json`` (everything).

    Raises:
        ValueError: a value is not finite (a bug of the experiment: what diverges is to be told by name).
    """
    claims, cells = outcome.claim_table(), outcome.cell_table()
    everything = {
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        **about,
        "settings": outcome.settings,
        "notes": outcome.notes,
        "claims": claims.rows,
        "cells": cells.rows,
        "tables": {table.title: table.rows for table in outcome.tables},
        "curves": {title: asdict(figure) for title, figure in outcome.figures.items()},
    }
    text = json.dumps(everything, indent=2, allow_nan=False)  # nothing is written if a number is not finite
    write_atomically(folder / "results.json", json.dumps(claims.rows, indent=2) + "\n")
    write_atomically(folder / "reproduction.json", text + "\n")
    write_atomically(folder / "cells.json", json.dumps(cells.rows, indent=2) + "\n")
    for table in (cells, claims, *outcome.tables):
        if table.rows:
            write_atomically(folder / f"{slug(table.title)}.csv", table.to_csv())
