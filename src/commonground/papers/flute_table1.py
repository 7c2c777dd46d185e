"""FLUTE's Table 1: FLUTE, FLUTE* and their rivals on CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commonground.papers.base import Experiment, Outcome, Scale
from commonground.papers.fedrep_table1 import COMMON
from commonground.papers.tables import Column, PaperTable, reduced, run_table

__all__ = ["TABLE"]


def _column(name: str, data: str, clients: int, classes: int) -> Column:
    # The paper leaves the schedule to FedRep's settings; five local epochs for CIFAR-100 as there.
    settings = {**COMMON, "clients": clients, "classes_per_client": classes}
    settings |= {"local_epochs": 1 if data == "cifar10" else 5}
    return Column(f"{name} ({clients}, {classes})", (data, str(clients), str(classes)), data, settings)


TABLE = PaperTable(
    printed="flute-table1",
    source="Liu, Shen, Yang 2024, Table 1",
    methods={
        "FLUTE*": "flute-star",
        "FLUTE": "flute",
        "FedRep*": "fedrep-star",
        # §7.2: FedRep takes as many epochs on the head as on the body, FedRep* ten.
        "FedRep": "fedrep:head_epochs={local_epochs}",
        "FedAvg": "fedavg",
        "FedAvg-FT": "fedavg+ft",
        "Fed-LG": "lg-fedavg",
        "FedPer": "fedper",
        "FedRoD": "fedrod",
        "FedCP": "fedcp",
    },
    columns=(
        _column("CIFAR-10", "cifar10", 50, 2),
        _column("CIFAR-10", "cifar10", 50, 5),
        _column("CIFAR-10", "cifar10", 100, 2),
        _column("CIFAR-10", "cifar10", 100, 5),
        *(_column("CIFAR-100", "cifar100", 100, classes) for classes in (5, 10, 20, 40)),
    ),
    champions=("FLUTE*", "FLUTE"),
)


def _run(scale: Scale, seed: int, folder: Path, data_dir: str | None, quiet: bool) -> Outcome:
    if scale == "paper":
        return run_table(TABLE, TABLE.columns, seeds=5, first_seed=seed, folder=folder, data_dir=data_dir, quiet=quiet)
    small: dict[str, Any] = {
        "clients": 20,
        "participation": 0.25,
        "rounds": 30,
        "local_epochs": 5,
        "train_samples": 100,
        "test_samples": 100,
    }
    columns = [reduced(column, **small) for column in TABLE.columns[:2]]
    outcome = run_table(TABLE, columns, seeds=1, first_seed=seed, folder=folder, data_dir=data_dir, quiet=quiet)
    outcome.notes.insert(
        0,
        "Reduced: 20 clients of 100 training and 100 test images instead of 50 of 1,000 and 200, a quarter of them per "
        "round, 30 rounds, 5 local epochs, one seed; the first two columns alone. Intervals are over clients, not "
        "seeds.",
    )
    return outcome


Experiment("flute-table1", "accuracy of FLUTE, FLUTE* and their rivals", TABLE.source, _run)
