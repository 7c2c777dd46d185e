"""What a reproduction leaves in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from commonground.engine.state.folder import write_atomically
from commonground.papers.experiment import Experiment
from commonground.papers.outcome import Outcome
from commonground.report.format import slug

__all__ = ["write_outcome"]


def write_outcome(outcome: Outcome, experiment: Experiment, about: Mapping[str, Any], folder: Path) -> None:
    """Write ``results.json`` (the claims), ``claims.csv``, ``cells.csv``, a CSV file for every other table, and
    ``reproduction.json`` (everything).

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
