"""FLUTE's Table 1 and its curves (Figures 5 to 12): FLUTE, FLUTE* and their rivals on CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from dataclasses import replace

from commonground.papers.experiment import Experiment
from commonground.papers.tables.judge import run_table
from commonground.papers.tables.table import FromColumn, PaperTable, Row, cifar_column

__all__ = ["TABLE"]

TUNED = {"finetune_epochs": 10}
# For the curves: tests in every fifth round, and both metrics of neural collapse (App. C.2).
CURVES = {"eval_every": 5, "metrics": "full"}

SOURCE = "Liu, Shen, Yang 2024, Table 1"
TABLE = PaperTable(
    name="flute-table1",
    printed="flute-table1",
    source=SOURCE,
    rows=(
        Row("FLUTE*", "flute-star"),
        Row(
            "FLUTE*, head first",
            "flute-star",
            options={"head_first": True},
            printed="FLUTE*",
            note="the paper has FLUTE*'s ten epochs on the head after the one on both parts (§7.2), the authors' code "
            "before it; behind it heads are fitted to the client's own body and tested on the averaged one",
        ),
        Row("FLUTE", "flute"),
        Row("FedRep*", "fedrep-star"),
        # §7.2: FedRep takes as many epochs on the head as on the body, FedRep* ten.
        Row("FedRep", "fedrep", options={"head_epochs": FromColumn("local_epochs")}),
        Row("FedAvg", "fedavg", settings=TUNED, reads="global"),
        Row("FedAvg-FT", "fedavg", settings=TUNED),
        Row("Fed-LG", "lg-fedavg"),
        Row("FedPer", "fedper"),
        Row(
            "FedRoD",
            "fedrod",
            note="with the balanced softmax as its paper has it; the code published with FLUTE never uses the "
            "denominator of its balanced softmax",
        ),
        Row("FedCP", "fedcp"),
        Row(
            "FedAvg-FT, all layers",
            "fedavg",
            settings={**TUNED, "finetune": "all"},
            printed="FedAvg-FT",
            note="as the code published with FLUTE fine-tunes, which took that part over from FedRep's",
        ),
    ),
    # The paper leaves the schedule to FedRep's settings: one local epoch on CIFAR-10, five on CIFAR-100 (§7.2).
    columns=tuple(
        replace(column, settings={**column.settings, **CURVES})
        for column in (
            *(cifar_column(10, clients, classes, epochs=1) for clients in (50, 100) for classes in (2, 5)),
            *(cifar_column(100, 100, classes, epochs=5) for classes in (5, 10, 20, 40)),
        )
    ),
    champions=("FLUTE*", "FLUTE*, head first", "FLUTE"),
    own_bodies=True,
    notes=(
        "A cell is the mean accuracy over clients of each client's own model, averaged over the last 10 rounds, for "
        "FedAvg that of the global model; for FedAvg-FT it is measured after 10 epochs on the head of the final global "
        "model. Intervals are Student's over seeds, and no claim is judged on fewer than three.",
        "The paper does not say on which body a client is tested, and that decides the order of the methods. So leads "
        "are judged a second time 'on bodies just trained': of clients as they end a round, by what local training "
        "gains the participants of the last ten rounds, and without FedAvg, whose model is global or tuned after them.",
        "FLUTE's penalties are its paper's formulas with what the weights of its code amount to with 10 participants. "
        "The code's own form is the variant 'flute-authors': its head steps are twice as long where 5 of 50 clients "
        "take part, since it has a mean where the paper has a sum. With 50 clients the code trains on 500 of a "
        "client's 1,000 images: the variant 'half-the-images'.",
    ),
)

Experiment(
    "flute-table1",
    "accuracy of FLUTE, FLUTE* and their rivals, with their neural collapse",
    SOURCE,
    lambda request: run_table(TABLE, request),
    table=TABLE,
)
