"""FedRep's Table 1: every method on every partition whose data is at hand."""

from __future__ import annotations

from commonground.papers.accuracy_table import COMMON, SMALL, PaperColumn, PaperTable, cifar_column, reduced, run_table
from commonground.papers.experiment import Experiment, Request
from commonground.papers.outcome import Outcome

__all__ = ["TABLE"]

TABLE = PaperTable(
    printed="fedrep-table1",
    source="Collins et al. 2021, Table 1",
    methods={
        "FedRep": "fedrep",
        "Local Only": "local",
        "FedAvg": "fedavg",
        "FedAvg+FT": "fedavg+ft",
        "FedProx": "fedprox",
        "FedProx+FT": "fedprox+ft",
        "SCAFFOLD": "scaffold",
        "SCAFFOLD+FT": "scaffold+ft",
        "Fed-MTL": "fedmtl",
        "PerFedAvg": "perfedavg",
        "LG-Fed": "lg-fedavg",
        "L2GD": "l2gd",
        "APFL": "apfl",
        "Ditto": "ditto",
        "FedPer": "fedper",
    },
    columns=(
        cifar_column(10, 100, 2, epochs=1),
        cifar_column(10, 100, 5, epochs=1),
        cifar_column(10, 1000, 2, epochs=5),
        cifar_column(100, 100, 5, epochs=5),
        cifar_column(100, 100, 20, epochs=5),
        PaperColumn(
            "FEMNIST (150, 3)",
            ("femnist", "150", "3"),
            "emnist-letters",
            {
                **COMMON,
                "clients": 150,
                "partition": "lognormal:min=50,classes=3",
                "model": "mlp",
                "local_epochs": 5,
                "rounds": 200,
            },
            note="EMNIST letters A–J with log-normal sizes play FEMNIST's part, for no writer ids are available; "
            "the mean is what the 15,000 letters allow, not 148",
        ),
        PaperColumn(
            "Sent140 (183, 2)",
            ("sent140", "183", "2"),
            "sent140",
            {**COMMON, "partition": "column:user", "model": "lstm", "batch_size": 4, "local_epochs": 5, "rounds": 50},
        ),
    ),
    champions=("FedRep",),
)


def _run(request: Request) -> Outcome:
    if request.scale == "paper":
        outcome = run_table(TABLE, TABLE.columns, request, seeds=5)
    else:
        columns = [reduced(column, **SMALL) for column in TABLE.columns[:2]]
        outcome = run_table(TABLE, columns, request, seeds=1)
        outcome.notes.insert(
            0,
            "Reduced: 20 clients of 100 training and 100 test images instead of 100 of 500 and 100, a quarter of them "
            "per round, 30 rounds, 5 local epochs, one seed; the first two columns alone. With less data per client "
            "the values are lower than the paper's, and intervals are over clients, not seeds.",
        )
    outcome.notes.append(
        "Each method's accuracy is the mean over clients, averaged over the last 10 rounds; for +FT after 10 epochs on "
        "the head of the final global model; for global methods that of the global model."
    )
    outcome.notes.append(
        "L2GD averages with probability 0.1 here, not 0.9: clients are sampled as for the other methods, while the "
        "authors' code lets all take part in L2GD's rounds."
    )
    return outcome


Experiment("fedrep-table1", "accuracy of FedRep and 14 methods on the papers' partitions", TABLE.source, _run)
