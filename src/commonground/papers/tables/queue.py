"""The order in which the papers' tables are filled: one seed of the cheapest columns first, then further seeds, then
the rest. What takes the next missing cells, for as long as it may, is ``commonground reproduce --paper-tables``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.fill import work_for
from commonground.papers.tables.table import PaperTable
from commonground.papers.tables.variants import PAPER

__all__ = ["ORDER", "Stage", "next_stage", "stages"]


@dataclass(frozen=True)
class Stage:
    """Some columns of a table, up to a number of seeds.

    Attributes:
        table: name of the experiment.
        columns: labels.
        seeds: how many, from 0.
    """

    table: str
    columns: tuple[str, ...]
    seeds: int


_FEDREP = ("CIFAR-10 (100, 2)", "CIFAR-10 (100, 5)")
_FLUTE = ("CIFAR-10 (50, 2)", "CIFAR-10 (50, 5)")
_FLUTE_REST = tuple(f"CIFAR-100 (100, {classes})" for classes in (5, 10, 20, 40))

ORDER = (
    Stage("fedrep-table1", _FEDREP, 1),
    Stage("flute-table1", _FLUTE, 1),
    Stage("fedrep-table1", _FEDREP, 3),
    Stage("flute-table1", _FLUTE, 3),
    Stage("fedrep-table1", ("FEMNIST (150, 3)",), 3),
    Stage("fedrep-fig6", ("FEMNIST letters, then digits",), 3),
    Stage("fedrep-fig5", ("CIFAR-10 (100, 2)",), 3),
    Stage("fedrep-table1", ("CIFAR-10 (1000, 2)", "CIFAR-100 (100, 5)", "CIFAR-100 (100, 20)"), 3),
    Stage("flute-table1", _FEDREP, 3),
    Stage("flute-table1", _FLUTE_REST, 3),
    Stage("fedrep-table1", ("Sent140 (183, 2)",), 3),
    Stage("fedrep-table1", (*_FEDREP, "FEMNIST (150, 3)"), 5),
    Stage("flute-table1", (*_FLUTE, *_FEDREP), 5),
)


def stages(tables: Mapping[str, PaperTable]) -> Iterator[tuple[PaperTable, Stage]]:
    """The stages in their order, each with its table.

    Args:
        tables: by name of their experiments.
    """
    for stage in ORDER:
        yield tables[stage.table], stage


def next_stage(table: PaperTable, stage: Stage, folder: Path) -> bool:
    """Whether cells of a stage are missing in a folder. At scale small a stage has the columns that are there.

    Raises:
        RunError: the folder's files are damaged.
    """
    store = CellStore(folder)
    columns = [column for column in table.columns if column.label in stage.columns]
    work = work_for(table, columns, table.rows, [PAPER], range(stage.seeds), {})
    return any(key not in store for one in work for key in one.cells())
