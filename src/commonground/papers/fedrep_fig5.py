"""FedRep's Figure 5: more local epochs hurt FedAvg or leave it flat; more head epochs never hurt FedRep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commonground.compare import compare
from commonground.compare.progress import ComparisonProgress
from commonground.papers.base import Experiment, Outcome, Scale, difference, interval
from commonground.papers.tables import accuracies

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


def _run(scale: Scale, seed: int, folder: Path, data_dir: str | None, quiet: bool) -> Outcome:
    epochs = [1, 2, 5, 10, 20] if scale == "paper" else [1, 2, 5, 10]
    settings = {**PAPER, "eval_every": 20, "eval_last": 10}
    outcome = Outcome()
    if scale == "small":
        settings |= {"clients": 20, "participation": 0.25, "rounds": 40, "train_samples": 250, "test_samples": 100}
        outcome.notes.append(
            "Reduced: 20 clients of 250 training images, a quarter of them per round, 40 rounds, up to 10 epochs, one "
            "seed; intervals are over clients."
        )
    methods = {f"fedavg:local_epochs={e}": ("FedAvg", e) for e in epochs}
    methods |= {f"fedrep:head_epochs={e}": ("FedRep", e) for e in epochs}
    comparison = compare(
        list(methods),
        "cifar10",
        5 if scale == "paper" else 1,
        folder / "comparison",
        local_only=False,
        data_dir=data_dir,
        observer=ComparisonProgress(quiet),
        seed=seed,
        **settings,
    )
    measured = {
        key: accuracies(comparison.runs[label], "global" if key[0] == "FedAvg" else "personal")
        for label, key in methods.items()
    }
    lines = {}
    for name in ("FedAvg", "FedRep"):
        points = [interval(*measured[name, e]) for e in epochs]
        lines[name] = {
            "x": epochs,
            "mean": [p[0] for p in points],
            "low": [p[1] for p in points],
            "high": [p[2] for p in points],
        }
    outcome.curves["accuracy by local epochs"] = {
        "x": "local epochs E (FedRep: of the head)",
        "y": "accuracy",
        "lines": lines,
    }
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
