"""A table of four methods on digits that is filled in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from commonground.papers.request import Request
from commonground.papers.tables.table import FromColumn, PaperColumn, PaperTable, Row

SETTINGS: dict[str, Any] = {
    "clients": 6,
    "classes_per_client": 2,
    "rounds": 3,
    "local_epochs": 1,
    "participation": 1.0,
    "eval_last": 10,
}
COLUMN = PaperColumn("digits (6, 2)", ("cifar10", "100", "2"), "digits", SETTINGS, {"apfl": {"alpha": 0.75}})
ROWS = (
    Row("FedRep", "fedrep", options={"head_epochs": FromColumn("local_epochs")}),
    Row("FedAvg", "fedavg", settings={"finetune_epochs": 2}, reads="global"),
    Row("FedAvg+FT", "fedavg", settings={"finetune_epochs": 2}),
    Row("APFL", "apfl"),
)
TABLE = PaperTable("a-table", "fedrep-table1", "a paper", ROWS, (COLUMN,), ("FedRep",), small=1)


def request(folder: Path, **changed: Any) -> Request:
    return replace(Request(folder, "paper", quiet=True, seeds=1), **changed)


def copied(folder: Path, to: Path) -> None:
    """The cells of a folder, in another one."""
    for path in ("cells.csv", "clients/digits-6-2.csv", "curves/digits-6-2.csv"):
        (to / path).parent.mkdir(exist_ok=True)
        (to / path).write_bytes((folder / path).read_bytes())
