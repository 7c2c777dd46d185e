"""FedRep's Figure 6: bodies trained on letters, heads of new clients fitted to digits."""

from __future__ import annotations

from typing import Any

import numpy as np

from commonground.adapt import load_run
from commonground.adapt.few_shot import head_curve
from commonground.data import FederatedDataset, limit_samples, load_data
from commonground.papers.claims import difference
from commonground.papers.experiment import Experiment, Request
from commonground.papers.figures import Curve, Figure
from commonground.papers.outcome import Outcome
from commonground.papers.sweep import compare_methods
from commonground.statistics import Values, accuracy_interval

__all__: list[str] = []

SOURCE = "Collins et al. 2021, Figure 6"
METHODS = {
    "FedRep": "fedrep",
    "FedAvg": "fedavg",
    "PerFedAvg": "perfedavg",
    "LG-Fed": "lg-fedavg",
    "APFL": "apfl",
    "L2GD": "l2gd",
    "FedProx": "fedprox",
}
TRAINING: dict[str, Any] = {
    "clients": 150,
    "partition": "lognormal:mean=148,fewer=yes,min=50,classes=3",
    "model": "mlp",
    "participation": 0.1,
    "rounds": 200,
    "batch_size": 10,
    "lr": 0.01,
    "local_epochs": 5,
    "eval_every": 20,
    "eval_last": 10,
}


def new_clients(seed: int, data_dir: str | None) -> FederatedDataset:
    """100 clients with 500 MNIST images of 5 classes each, tested on 100, or as many as the smallest of them has."""
    digits = limit_samples(
        load_data("mnist", 100, classes_per_client=5, seed=seed, data_dir=data_dir), "train", 500, seed
    )
    return limit_samples(digits, "test", min(100, int(digits.test_sizes.min())), seed)


def _run(request: Request) -> Outcome:
    settings, epochs, seeds, seed = dict(TRAINING), 20, 5, request.seed
    outcome = Outcome()
    if request.scale == "small":
        seeds = 3
        settings |= {"clients": 30, "partition": "lognormal:mean=100,min=50,classes=3"}
        outcome.notes.append(
            "Reduced: bodies are trained by 30 clients of 100 letters on average instead of 150 of 148; rounds, local "
            "epochs and rates are the paper's. A round averages 3 clients instead of 15, and so few letters make every "
            "body worse."
        )
    outcome.notes.append(
        "EMNIST letters A–J with log-normal sizes play FEMNIST's part (no writer ids are available). The 100 new "
        "clients hold 500 MNIST images of 5 classes, and are tested on 100 (a few less where the 10,000 test images do "
        "not go round evenly). Where a method keeps bodies local (LG-Fed) new clients get the mean of the trained "
        "clients' bodies; a method with a global model starts from its head."
    )
    runs = compare_methods(list(METHODS.values()), "emnist-letters", seeds, request, "letters", settings)
    final: dict[str, tuple[list[float], list[Values]]] = {}
    lines = {}
    for name, method in METHODS.items():
        curves = []
        for k, run in enumerate(runs[method]):
            digits = new_clients(seed + k, request.data_dir)
            assert run.folder is not None
            curves.append(head_curve(load_run(run.folder), digits, epochs, seed=seed + k))
        points = [
            accuracy_interval([float(c[e].mean()) for c in curves], [c[e] for c in curves]) for e in range(epochs)
        ]
        lines[name] = Curve(list(range(1, epochs + 1)), *([p[i] for p in points] for i in range(3)))
        final[name] = [float(c[-1].mean()) for c in curves], [np.asarray(c[-1]) for c in curves]
    outcome.figures["new clients, accuracy by epochs of the head"] = Figure(
        "epochs of the head", "accuracy on digits", lines, percent=True
    )
    outcome.claims = [
        difference(f"FedRep's body serves new clients better than {name}'s", SOURCE, None, final["FedRep"], final[name])
        for name in METHODS
        if name != "FedRep"
    ]
    return outcome


Experiment("fedrep-fig6", "bodies trained on letters, heads fitted to digits of new clients", SOURCE, _run)
