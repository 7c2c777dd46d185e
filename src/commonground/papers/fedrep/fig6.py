"""FedRep's Figure 6: bodies trained on letters, heads of new clients fitted to digits."""

from __future__ import annotations

from dataclasses import replace

from commonground.adapt.few_shot import head_curve
from commonground.counted import counted
from commonground.data import FederatedDataset, limit_samples, load_data
from commonground.engine import Run
from commonground.papers.experiment import Experiment
from commonground.papers.fedrep.table1 import FEMNIST, L2GD
from commonground.papers.request import Request
from commonground.papers.tables.judge import run_table
from commonground.papers.tables.table import COMMON, PaperTable, Row, RowClaim
from commonground.statistics import Values

__all__ = ["TABLE", "new_clients"]

SOURCE = "Collins et al. 2021, Figure 6"
EPOCHS = 20
RIVALS = (
    Row("FedAvg", "fedavg"),
    Row("PerFedAvg", "perfedavg"),
    Row("LG-Fed", "lg-fedavg", note="keeps bodies with its clients: new ones get the mean of the trained clients'"),
    Row("APFL", "apfl", note="its shared model is the one that FedAvg trains, and so are its figures"),
    L2GD,
    Row("FedProx", "fedprox"),
)


def new_clients(seed: int, data_dir: str | None) -> FederatedDataset:
    """100 clients with 500 MNIST images of 5 classes each, tested on 100, or as many as the smallest of them has."""
    digits = limit_samples(
        load_data("mnist", 100, classes_per_client=5, seed=seed, data_dir=data_dir), "train", 500, seed
    )
    return limit_samples(digits, "test", min(100, int(digits.test_sizes.min())), seed)


def _served(run: Run, seed: int, request: Request) -> list[Values]:
    """New clients' accuracies after every epoch on their heads, at the rate that all methods have in common."""
    return head_curve(run, new_clients(seed, request.data_dir), EPOCHS, lr=COMMON["lr"], seed=seed)


def _needs(seed: int, request: Request) -> FederatedDataset:
    return new_clients(seed, request.data_dir)


TABLE = PaperTable(
    name="fedrep-fig6",
    printed="",
    source=SOURCE,
    rows=(Row("FedRep", "fedrep"), *RIVALS),
    columns=(replace(FEMNIST, label="FEMNIST letters, then digits"),),
    champions=(),
    comparisons=tuple(
        RowClaim(
            "FedRep",
            row.name,
            f"FedRep's body serves new clients better than {row.name}'s after {counted(epoch, 'epoch')} of their heads",
            epoch,
        )
        for epoch in (1, EPOCHS)
        for row in RIVALS
    ),
    served=_served,
    needs=_needs,
    reduced={"clients": 30, "partition": "lognormal:mean=100,min=50,classes=3"},
    reduced_text="Reduced: bodies are trained by 30 clients of 100 letters on average instead of 150 of 148; rounds, "
    "local epochs and rates are the paper's. A round averages 3 clients instead of 15, and so few letters make every "
    "body worse.",
    notes=(
        "A cell is the accuracy of new clients, mean over 100 of them, after 20 epochs on the head of a frozen body at "
        "rate 0.01: each holds 500 MNIST images of 5 classes and is tested on 100 (a few less where the 10,000 test "
        "images do not go round evenly). The bodies were trained on letters with the settings of Table 1's FEMNIST.",
        "Heads start from the global model's where a method has one, else (FedRep, LG-Fed) anew.",
    ),
)

Experiment(
    "fedrep-fig6",
    "bodies trained on letters, heads fitted to digits of new clients",
    SOURCE,
    lambda request: run_table(TABLE, request),
    table=TABLE,
)
