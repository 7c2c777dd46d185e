"""FLUTE's Table 1: FLUTE, FLUTE* and their rivals on CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from commonground.papers.accuracy_table import SMALL, PaperTable, cifar_column, reduced, run_table
from commonground.papers.experiment import Experiment, Request
from commonground.papers.outcome import Outcome

__all__ = ["TABLE"]


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
    # The paper leaves the schedule to FedRep's settings: one local epoch on CIFAR-10, five on CIFAR-100 (§7.2).
    columns=(
        *(cifar_column(10, clients, classes, epochs=1) for clients in (50, 100) for classes in (2, 5)),
        *(cifar_column(100, 100, classes, epochs=5) for classes in (5, 10, 20, 40)),
    ),
    champions=("FLUTE*", "FLUTE"),
)


def _run(request: Request) -> Outcome:
    if request.scale == "paper":
        return run_table(TABLE, TABLE.columns, request, seeds=5)
    columns = [reduced(column, **SMALL) for column in TABLE.columns[:2]]
    outcome = run_table(TABLE, columns, request, seeds=1)
    outcome.notes.insert(
        0,
        "Reduced: 20 clients of 100 training and 100 test images instead of 50 of 1,000 and 200, a quarter of them per "
        "round, 30 rounds, 5 local epochs, one seed; the first two columns alone. Intervals are over clients, not "
        "seeds.",
    )
    return outcome


Experiment("flute-table1", "accuracy of FLUTE, FLUTE* and their rivals", TABLE.source, _run)
