"""RoLoRA's Figure 2: f(x) = ReLU(x A B) W_out on MNIST, 5 clients of two labels each and 10 of one."""

from __future__ import annotations

from functools import cache, partial
from typing import Literal

import numpy as np
from pydantic import Field

from commonground.data import FederatedDataset, limit_samples, load_data
from commonground.errors import ConfigError
from commonground.papers.claims import judge
from commonground.papers.experiment import Experiment
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.papers.rolora.findings import Conditions, cell, curves, paired
from commonground.papers.rolora.protocol import METHODS, Protocol, measure, names_of
from commonground.papers.sweep import SweepArm

__all__: list[str] = []

SOURCE = "Chen et al. 2025, Figure 2"
SEEDS = 3
PLATEAU = 55.0  # percent: "the accuracy of FFA-LoRA plateaus around 55% in both settings"
AROUND = 5.0  # points around it, ours: the paper gives a figure and no table
CENTRAL = "Centralised"


class TwoLayers(Protocol):
    """What the experiment is run with, beside :class:`~commonground.papers.rolora.protocol.Protocol`.

    Attributes:
        clients: numbers of clients; each must divide the 10 labels.
        methods: any of lora, ffa-lora, flexlora, rolora.
        rank: r.
        begin: how learning can start in spite of B = 0 and ReLU'(0) = 0: ``derivative`` takes ReLU'(0) = 1, ``tiny``
            draws B from N(0, tiny²); ``zero`` is equation 12 as printed, which never learns.
        tiny: see ``begin``.
        a_std: standard deviation of A; 1/√d by default.
        rounds: T.
        local_epochs: E.
        batch_size: B.
        train_samples: of all clients together; 0 for all 60,000.
        test_samples: 0 for all 10,000.
        centralised: also train LoRA on all samples in one place, with as many epochs: the bound.
        data: mnist, or any other data set by name whose classes the numbers of clients divide.
    """

    clients: tuple[int, ...] = (5, 10)
    methods: tuple[str, ...] = ("lora", "ffa-lora", "flexlora", "rolora")
    rank: int = Field(default=16, ge=1)
    begin: Literal["derivative", "tiny", "zero"] = "derivative"
    tiny: float = Field(default=1e-3, gt=0)
    a_std: float | None = Field(default=None, gt=0)
    rounds: int = Field(default=60, ge=2)
    local_epochs: int = Field(default=5, ge=1)
    batch_size: int = Field(default=64, ge=1)
    train_samples: int = Field(default=0, ge=0)
    test_samples: int = Field(default=0, ge=0)
    centralised: bool = True
    data: str = "mnist"


PAPER = TwoLayers(rates=(0.003, 0.01, 0.03, 0.1, 0.3), momentum=0.0)
SMALL = PAPER.model_copy(update={"rates": (0.01, 0.03, 0.1, 0.3), "rounds": 30, "train_samples": 6000})


def source_of(name: str) -> str:
    """Whose the comparison with a method is: the figure does not have FlexLoRA."""
    return f"ours, beside {SOURCE}" if name == "FlexLoRA" else SOURCE


def _run(request: Request) -> Outcome:
    settings = request.choose(SMALL, PAPER)
    settings.check()
    names = names_of(settings.methods)
    if not settings.clients or min(settings.clients) < 1 or len(set(settings.clients)) != len(settings.clients):
        raise ConfigError(f"clients is {list(settings.clients)}; name at least one number from 1 on, and each once")
    seeds = request.seed_range(SEEDS)

    @cache
    def dealt(clients: int, seed: int) -> FederatedDataset:
        return _deal(settings, clients, seed, request.data_dir)

    model = {"rank": settings.rank, "begin": settings.begin, "tiny": settings.tiny}
    run = {
        "model": "low-rank",
        "model_options": model | ({} if settings.a_std is None else {"a_std": settings.a_std}),
        "options": {"head": "frozen"},  # W_out is fixed
        "rounds": settings.rounds,
        "local_epochs": settings.local_epochs,
        "batch_size": settings.batch_size,
    }
    every = [
        SweepArm(f"{n} clients", name, ours, partial(dealt, n), run)
        for n in settings.clients
        for name, ours in names.items()
    ]
    if settings.centralised:
        every.append(SweepArm("1 client", CENTRAL, METHODS["LoRA"], partial(dealt, 1), run))
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    measured = measure(every, seeds, settings, request, outcome.notes)
    found = Conditions(measured, SOURCE, outcome)
    central = found.of("1 client", CENTRAL)
    for n in settings.clients:
        lines = {name: measured[f"{n} clients", name] for name in names}
        if central is not None:
            lines[CENTRAL] = central
        outcome.figures[f"{n} clients: accuracy on the test set"] = curves(lines)
        outcome.cells += [cell(f"{n} clients", name, None, one) for name, one in lines.items()]
    _judge(found, settings, list(names))
    found.exactness()
    found.costs()
    outcome.notes = [*_notes(settings, request), *outcome.notes]
    return outcome


def _deal(settings: TwoLayers, clients: int, seed: int, data_dir: str | None) -> FederatedDataset:
    """Whole labels to clients ({0, 1}, {2, 3}, … for five); the test set in equal parts, so that the mean over clients
    is the accuracy of the global model on all of it.
    """
    data = load_data(settings.data, clients, partition="labels:test=iid", seed=seed, data_dir=data_dir)
    if settings.train_samples:
        data = limit_samples(data, "train", max(1, settings.train_samples // clients), seed)
    if settings.test_samples:
        data = limit_samples(data, "test", max(1, settings.test_samples // clients), seed)
    return data


def _judge(found: Conditions, settings: TwoLayers, names: list[str]) -> None:
    outcome = found.outcome
    few, many = min(settings.clients), max(settings.clients)
    for n in settings.clients:
        ffa = found.of(f"{n} clients", "FFA-LoRA")
        if ffa is not None:
            judge(
                outcome,
                f"FFA-LoRA plateaus around {PLATEAU:g} % with {n} clients (accuracy, within {AROUND:g} points)",
                SOURCE,
                PLATEAU,
                ffa.accuracies,
                "within",
                PLATEAU,
                tolerance=AROUND,
            )
            third = max(1, ffa.curves.shape[1] // 3)
            gain = 100 * (ffa.curves[:, -1] - ffa.curves[:, -1 - third]) if ffa.curves.shape[1] > 1 else np.zeros(1)
            judge(
                outcome,
                f"FFA-LoRA saturates with {n} clients: points gained in the last third of the rounds (at most 1)",
                SOURCE,
                "plateaus",
                gain,
                "below",
                1.0,
            )
        rolora = found.of(f"{n} clients", "RoLoRA")
        for name in names:
            other = found.of(f"{n} clients", name)
            if rolora is not None and other is not None and name != "RoLoRA":
                text = f"RoLoRA above {name} with {n} clients (points)"
                word = None if name == "FlexLoRA" else "above"
                judge(outcome, text, source_of(name), word, paired(rolora, other), "above")
    if few == many:
        return
    falls = {}
    for name in names:
        one, other = found.of(f"{few} clients", name), found.of(f"{many} clients", name)
        if one is not None and other is not None:
            falls[name] = paired(one, other)
    if "LoRA" in falls:
        text = f"LoRA falls from {few} to {many} clients (points lost)"
        judge(outcome, text, SOURCE, "declines", falls["LoRA"], "above")
    for name in falls:
        if name != "RoLoRA" and "RoLoRA" in falls:
            text = f"RoLoRA is more robust than {name}: it loses fewer points from {few} to {many} clients"
            word = None if name == "FlexLoRA" else "greater robustness"
            judge(outcome, text, source_of(name), word, falls[name] - falls["RoLoRA"], "above")


def _notes(settings: TwoLayers, request: Request) -> list[str]:
    start = {
        "derivative": "ReLU'(0) is taken as 1",
        "tiny": f"B starts from N(0, {settings.tiny:g}²) in place of zero",
        "zero": "nothing is changed, so nothing is learnt",
    }[settings.begin]
    notes = []
    if request.scale == "small":
        notes.append(
            f"Reduced: {settings.train_samples or 'all'} training images in place of 60,000, {settings.rounds} rounds, "
            f"{len(settings.rates)} rates; {settings.test_samples or 'all'} test images."
        )
    return [
        *notes,
        settings.says(),
        f"With B = 0 and ReLU'(0) = 0 every gradient of equation 12 is zero and training never starts; here {start} "
        "(--set begin=derivative|tiny|zero).",
        f"A is drawn from N(0, {'1/d' if settings.a_std is None else f'{settings.a_std:g}²'}), W_out from N(0, 1/d); "
        "the paper says only that A is Gaussian. Labels go to clients in order: {0, 1}, {2, 3}, …, or {0}, {1}, ….",
        "A round is a communication round; RoLoRA trains one factor in each. FlexLoRA is not in the paper's figure; "
        f"'{CENTRAL}' is LoRA on all samples in one place with as many epochs. {AROUND:g} points around 55 % and 1 "
        "point of gain are our reading of 'plateaus around 55 %'.",
        "For FlexLoRA, which averages products, the aggregation error is what averaging its factors would have cost.",
    ]


Experiment("rolora-fig2", "two-layer network on MNIST, two labels or one per client", SOURCE, _run)
