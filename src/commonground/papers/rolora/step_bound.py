"""RoLoRA with its step bounded by the frozen factor: the linear problem, and Figure 2's network at large rates."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import torch
from pydantic import Field

from commonground.data import FederatedDataset, limit_samples, load_data
from commonground.errors import ConfigError
from commonground.papers.claims import fraction, judge
from commonground.papers.experiment import Experiment
from commonground.papers.figures import Figure, median_curve
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.papers.rolora.findings import cell, curves
from commonground.papers.rolora.protocol import Found, Protocol, measure
from commonground.papers.sweep import SweepArm
from commonground.statistics import Values
from commonground.theory.rolora import contracts, homogeneous, rolora_steps
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = "ours, after Chen et al. 2025, Section 5 and Figure 2"
SEEDS = 3
LINEAR_SEEDS = 20
PLAIN = "RoLoRA"
DRAWN = 1e-16  # smallest angle drawn


class StepBound(Protocol):
    """What the experiment is run with, beside :class:`~commonground.papers.rolora.protocol.Protocol`.

    Attributes:
        rates: learning rates that are compared; none is chosen.
        bounds: values of ``step_bound`` that are compared with none.
        clients: of the network's data, whole labels each.
        rank, rounds, local_epochs, batch_size: of its training.
        train_samples, test_samples: of all clients together; 0 for all.
        data: by name.
        shares: steps of the linear problem as multiples of 1/‖b*‖².
        linear_bound: c of the bounded steps there.
        linear_rounds: its rounds.
        dimension, delta0, samples: d, δ^0, and m beside infinitely many.
    """

    rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    bounds: tuple[float, ...] = (0.3, 1.0)
    clients: int = Field(default=5, ge=1)
    rank: int = Field(default=16, ge=1)
    rounds: int = Field(default=60, ge=3)
    local_epochs: int = Field(default=5, ge=1)
    batch_size: int = Field(default=64, ge=1)
    train_samples: int = Field(default=0, ge=0)
    test_samples: int = Field(default=0, ge=0)
    data: str = "mnist"
    shares: tuple[float, ...] = Field(default=(0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10), min_length=1)
    linear_bound: float = Field(default=0.5, gt=0)
    linear_rounds: int = Field(default=40, ge=1)
    dimension: int = Field(default=20, ge=2)
    delta0: float = Field(default=0.8, gt=0, lt=1)
    samples: int = Field(default=100, ge=1)


PAPER = StepBound()
SMALL = PAPER.model_copy(update={"rounds": 30, "train_samples": 3000, "test_samples": 2000})


def _run(request: Request) -> Outcome:
    settings = request.choose(SMALL, PAPER)
    settings.check()
    if min((*settings.bounds, *settings.shares), default=1) <= 0:
        raise ConfigError("bounds and shares are positive numbers")
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    _linear(outcome, settings, request)
    _network(outcome, settings, request)
    outcome.notes += [
        "The paper has no such experiment. step_bound = c keeps a round's learning rate at most c/‖F‖², F being the "
        "factor that is frozen in it (--set step_bound=c of rolora).",
        f"The network is Figure 2's, with {settings.clients} clients of whole labels, plain SGD and a fixed rate. A "
        "late fall is how far accuracy falls below an earlier round's, at most, in the last third of the rounds.",
    ]
    return outcome


# -- the linear problem ---------------------------------------------------------------------------------------------


@one_thread()
def _linear(outcome: Outcome, settings: StepBound, request: Request) -> None:
    seeds, shares = request.seed_range(LINEAR_SEEDS), sorted(set(settings.shares))
    problem = homogeneous(seeds, 10, settings.dimension, settings.delta0, 1.0, request.device)
    lines = {}
    for samples, many in ((None, "m = ∞"), (settings.samples, f"m = {settings.samples}")):
        for bound, how in ((None, "fixed step"), (settings.linear_bound, f"bounded, c = {settings.linear_bound:g}")):
            delta = rolora_steps(problem, settings.linear_rounds, shares, samples, bound=bound).delta
            lines[f"{how}, {many}"] = median_curve(shares, delta[:, :, -1].clamp_min(DRAWN))
            if bound is None:
                continue
            shrinks, judged = contracts(delta, torch.ones(len(shares), dtype=delta.dtype, device=delta.device))
            outcome.claims.append(
                fraction(
                    f"Linear problem, {how}, {many}: δ grows in no round, at any of the steps up to "
                    f"{shares[-1]:g}/‖b*‖² (share of seeds)",
                    SOURCE,
                    None,
                    (shrinks | ~judged).all(dim=2).all(dim=1),
                )
            )
    outcome.figures["linear problem: angle after the last round"] = Figure(
        "step η‖b*‖²",
        f"angle distance δ after {settings.linear_rounds} rounds",
        lines,
        log_x=True,
        log_y=True,
        reads=f"d = {settings.dimension}, δ^0 = {settings.delta0:g}. A bounded step is at most c/‖b̄‖², b̄ being the "
        "frozen factor; with infinitely many samples and c = 1/2 one such step is exact. Lines are medians, bands "
        "their 95 % intervals.",
    )


# -- the network ----------------------------------------------------------------------------------------------------


def _network(outcome: Outcome, settings: StepBound, request: Request) -> None:
    @cache
    def dealt(seed: int) -> FederatedDataset:
        data = load_data(
            settings.data, settings.clients, partition="labels:test=iid", seed=seed, data_dir=request.data_dir
        )
        if settings.train_samples:
            data = limit_samples(data, "train", max(1, settings.train_samples // settings.clients), seed)
        if settings.test_samples:
            data = limit_samples(data, "test", max(1, settings.test_samples // settings.clients), seed)
        return data

    names: dict[str, float | None] = {PLAIN: None} | {f"{PLAIN}, step bound {c:g}": c for c in settings.bounds}
    for rate in settings.rates:
        condition = f"rate {rate:g}"
        arms = [
            SweepArm(
                condition, name, "rolora", partial(dealt), _settings(settings, bound), f"{condition}/bound-{bound}"
            )
            for name, bound in names.items()
        ]
        single = settings.model_copy(update={"rates": (rate,)})
        measured = measure(arms, request.seed_range(SEEDS), single, request, outcome.notes)
        found = {name: measured[condition, name] for name in names}
        outcome.figures[f"{condition}: accuracy on the test set"] = curves(found)
        outcome.cells += [cell(condition, name, None, one) for name, one in found.items()]
        outcome.add_table(f"{condition}: late falls", [_row(name, one) for name, one in found.items()])
        for name, one in found.items():
            if name != PLAIN:
                _judge(outcome, f"{name}, at {condition}", one, found[PLAIN])


def _settings(settings: StepBound, bound: float | None) -> dict[str, object]:
    return {
        "model": "low-rank",
        "model_options": {"rank": settings.rank},
        "options": {"head": "frozen"} | ({} if bound is None else {"step_bound": bound}),
        "rounds": settings.rounds,
        "local_epochs": settings.local_epochs,
        "batch_size": settings.batch_size,
    }


def late_falls(measured: Found) -> Values:
    """Per seed the largest fall below an earlier accuracy in the last third of the tested rounds, in points."""
    late = 100 * measured.curves[:, -max(2, measured.curves.shape[1] // 3) :]
    falls: Values = (np.maximum.accumulate(late, axis=1) - late).max(axis=1)
    return falls


def _row(name: str, measured: Found) -> dict[str, object]:
    falls, ends = late_falls(measured), measured.accuracies
    return {
        "method": name,
        "accuracy after the last round (%)": round(float(ends.mean()), 2),
        "of the worst seed": round(float(ends.min()), 2),
        "largest late fall, mean (points)": round(float(falls.mean()), 2),
        "of the worst seed (points)": round(float(falls.max()), 2),
    }


def _judge(outcome: Outcome, text: str, bounded: Found, plain: Found) -> None:
    falls = late_falls(plain) - late_falls(bounded)
    judge(outcome, f"{text}: late falls are smaller than without (points)", SOURCE, None, falls, "above")
    ends = bounded.accuracies - plain.accuracies
    judge(outcome, f"{text}: ends more accurate than without (points)", SOURCE, None, ends, "above")


Experiment("rolora-step-bound", "RoLoRA near the largest rates, its step bounded by the frozen factor", SOURCE, _run)
