"""What a folder of cells is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commonground.errors import RunError
from commonground.papers.experiment import Experiment
from commonground.papers.tables.table import PaperTable
from commonground.report.read import read_json

__all__ = ["table_in"]


def table_in(folder: Path) -> tuple[Experiment, PaperTable, dict[str, Any]]:
    """The experiment whose cells a folder holds, its table at the folder's scale, and what ``reproduction.json`` says.

    Raises:
        RunError: the folder holds no table.
    """
    from commonground.papers import experiments

    about = read_json(folder / "reproduction.json")
    chosen = experiments.get(str(about.get("experiment")))
    if chosen is None or chosen.table is None:
        raise RunError(f"'{folder}' holds {about.get('experiment', 'an experiment')}, which is no table of cells")
    return chosen, chosen.table.at_scale(str(about.get("scale"))), about
