"""FedRep's Figure 5: more local epochs hurt FedAvg or leave it flat; more head epochs never hurt FedRep."""

from __future__ import annotations

from typing import Any

from commonground.papers.claims import difference
from commonground.papers.experiment import Experiment, Request
from commonground.papers.figures import Curve, Figure
from commonground.papers.outcome import Outcome
from commonground.papers.sweep import accuracies, compare_methods
from commonground.statistics import accuracy_interval

__all__: list[str] = []

SOURCE = "Collins et al. 2021, Figure 5"
# CIFAR-10 (100, 2) with McMahan et al.'s (B, lr) = (50, 0.1), as the appendix says for this figure alone.
PAPER: dict[str, Any] = {
    "clients": 100,
    "classes_per_client": 2,
    "participation": 0.1,
    "rounds": 100,
    "batch_size": 50,
    "lr": 0.1,
}


def _run(request: Request) -> Outcome:
    epochs = [1, 2, 5, 10, 20] if request.scale == "paper" else [1, 2, 5, 10]
    settings = {**PAPER, "eval_every": 20, "eval_last": 10}
    outcome = Outcome()
    if request.scale == "small":
        settings |= {"clients": 20, "participation": 0.25, "rounds": 40, "train_samples": 250, "test_samples": 100}
        outcome.notes.append(
            "Reduced: 20 clients of 250 training images, a quarter of them per round, 40 rounds, up to 10 epochs, one "
            "seed; intervals are over clients."
        )
    methods = {f"fedavg:local_epochs={e}": ("FedAvg", e) for e in epochs}
    methods |= {f"fedrep:head_epochs={e}": ("FedRep", e) for e in epochs}
    seeds = 5 if request.scale == "paper" else 1
    runs = compare_methods(list(methods), "cifar10", seeds, request, "comparison", settings)
    measured = {
        key: accuracies(runs[label], "global" if key[0] == "FedAvg" else "personal") for label, key in methods.items()
    }
    lines = {}
    for name in ("FedAvg", "FedRep"):
        points = [accuracy_interval(*measured[name, e]) for e in epochs]
        lines[name] = Curve(epochs, *([p[i] for p in points] for i in range(3)))
    outcome.figures["accuracy by local epochs"] = Figure(
        "local epochs E (FedRep: of the head)", "accuracy", lines, percent=True
    )
    most = epochs[-1]
    outcome.claims = [
        difference(
            f"FedRep with {e} head epochs is not below FedRep with {epochs[i]}",
            SOURCE,
            None,
            measured["FedRep", e],
            measured["FedRep", epochs[i]],
        )
        for i, e in enumerate(epochs[1:])
    ]
    outcome.claims.append(
        difference(
            f"FedRep with {most} head epochs above FedRep with 1",
            SOURCE,
            None,
            *(measured["FedRep", e] for e in (most, 1)),
        )
    )
    outcome.claims.append(
        difference(
            f"FedAvg does not gain from {most} local epochs over 1 (positive: 1 epoch is better)",
            SOURCE,
            None,
            measured["FedAvg", 1],
            measured["FedAvg", most],
        )
    )
    outcome.notes.append(
        '"not below" holds if the interval of the difference lies above 0, is open if it includes 0, and fails if it '
        "lies below."
    )
    return outcome


Experiment("fedrep-fig5", "accuracy against local epochs, FedAvg and FedRep", SOURCE, _run)
