"""FFA-LoRA's loss against Proposition 5.5 with its exact c̃, and against Proposition A.17."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field

from commonground.papers.claims import claim
from commonground.papers.figures import Curve, Figure, mean_curve
from commonground.papers.outcome import Claim, Outcome
from commonground.papers.request import Request, Settings
from commonground.statistics import student_interval
from commonground.theory.rolora import (
    expected_ffa_loss,
    ffa_draws,
    ffa_excess,
    heterogeneous,
    homogeneous,
    population_loss,
    rolora,
)

__all__ = ["FFASettings", "judge_ffa", "judge_frozen_clients_that_differ"]

PAPER = "RoLoRA"
SOURCE = f"{PAPER}, Proposition 5.5"


class FFASettings(Settings):
    """The problem, and where FFA-LoRA's loss is measured.

    Attributes:
        clients, samples, dimension: N, m, d.
        delta0: δ^0.
        norm: ‖b*‖.
        gamma: γ of the clients for Proposition A.17.
        ffa_clients, ffa_samples, ffa_dimension, ffa_draws: where c̃ is measured, and on how many draws per seed.
    """

    also: ClassVar[Mapping[str, str]] = {
        "N": "clients",
        "n": "clients",
        "M": "clients",
        "m": "samples",
        "d": "dimension",
        "eta": "step",
    }

    clients: int = 10
    samples: int = 50
    dimension: int = 20
    delta0: float = 0.8
    norm: float = 1.0
    gamma: float = 1.0
    ffa_clients: tuple[int, ...] = (1, 2, 10)
    ffa_samples: tuple[int, ...] = (3, 5, 10, 30)
    ffa_dimension: int = 5
    ffa_draws: int = Field(default=400, ge=1)


def judge_ffa(outcome: Outcome, settings: FFASettings, request: Request, seeds: Sequence[int]) -> None:
    """Judge Proposition 5.5 with its c̃, by the loss on the samples b was fitted to."""
    sizes = [(n, m) for n in settings.ffa_clients for m in settings.ffa_samples]
    rows: list[dict[str, Any]] = []
    lines: dict[str, Curve] = {}
    judged: list[Claim] = []
    measured: dict[int, list[torch.Tensor]] = {}
    for n, m in request.progress(sizes, "FFA-LoRA", len(sizes)):
        excess = _measured_excess(settings, seeds, n, m, request.device)
        measured.setdefault(n, []).append(excess * n * m)
        known = ffa_excess(n, m)
        mean, low, high = (float(v) for v in student_interval(excess))
        steady = _steady(n, m)
        if steady:
            judged.append(_agreement(n, m, excess))
        rows.append(
            {
                "N": n,
                "m": m,
                "c̃ exact": known if known < math.inf else "infinite",
                "c̃ measured": mean if m > 2 or n == 1 else "–",
                "low": low if m > 2 or n == 1 else "–",
                "high": high if m > 2 or n == 1 else "–",
                "judged": steady,
            }
        )
    for n, values in measured.items():
        shown = [i for i, m in enumerate(settings.ffa_samples) if _steady(n, m)]
        if shown:
            x = [settings.ffa_samples[i] for i in shown]
            lines[f"N = {n}, measured"] = mean_curve(x, torch.stack([values[i] for i in shown], dim=1))
        x = [m for m in settings.ffa_samples if ffa_excess(n, m) < math.inf]
        if x:
            lines[f"N = {n}, exact"] = Curve(x, [n * m * ffa_excess(n, m) for m in x])
    outcome.add_table("FFA-LoRA: c̃ of Proposition 5.5", rows)
    if lines:
        outcome.figures["c̃ times Nm"] = Figure(
            "samples per client m",
            "Nm · c̃",
            lines,
            reads="Bounded by 1 in size for every m ≥ 3: c̃ = O(1/(Nm)). Lines are means, bands their 95 % intervals, "
            "shown where the variance is finite (m ≥ 5, or N = 1).",
        )
    if judged:
        worst = max(judged, key=lambda one: abs(one.measured))
        verdicts = [one.holds for one in judged]
        holds = True if all(verdicts) else False if False in verdicts else None
        outcome.claims.append(replace(worst, holds=holds))
    n, m = settings.clients, settings.samples
    if _steady(n, m):
        outcome.claims.append(
            claim(
                f"At N = {n}, m = {m}: Nm·c̃ is the exact {n * m * ffa_excess(n, m):.4g} (within 0.1)",
                SOURCE,
                "O(1)",
                _measured_excess(settings, seeds, n, m, request.device) * n * m,
                "within",
                n * m * ffa_excess(n, m),
                tolerance=0.1,
            )
        )


def _agreement(clients: int, samples: int, excess: torch.Tensor) -> Claim:
    """Whether the measured c̃ is the exact one."""
    return claim(
        "FFA-LoRA's expected loss is (1 + c̃)‖b*‖²(δ^0)² with c̃ = (N(4 − m) − 2)/(N²m(m − 2)): Nm times the "
        "deviation of the measured c̃ is within 0.1 of 0 in every judged row of the table (shown: the largest, "
        f"N = {clients}, m = {samples})",
        SOURCE,
        "exact up to O(1/(Nm))",
        (excess - ffa_excess(clients, samples)) * clients * samples,
        "within",
        0.0,
        tolerance=0.1,
    )


def judge_frozen_clients_that_differ(
    outcome: Outcome, settings: FFASettings, seeds: Sequence[int], device: torch.device
) -> None:
    """Judge Proposition A.17: FFA-LoRA's loss over clients that differ, with infinitely many samples."""
    clients = max(settings.clients, 2)
    apart = heterogeneous(seeds, clients, settings.dimension, settings.delta0, settings.norm, settings.gamma, device)
    b = rolora(apart, 0, 1.0).b
    loss = population_loss(apart, apart.a_start, b)
    said = expected_ffa_loss(clients, None, settings.delta0, settings.norm**2, settings.gamma**2)
    # The loss is of differences of products: where these are larger than it, so is their rounding.
    limit = 1e-14 * max(1.0, settings.norm / math.sqrt(float(said)))
    outcome.claims.append(
        claim(
            f"FFA-LoRA's loss with N = {clients} clients that differ, γ = {settings.gamma:g}, is γ² + ‖b̄*‖²δ_0² to "
            f"machine precision (relative deviation below {limit:.1g})",
            f"{PAPER}, Proposition A.17",
            0.0,
            (loss / said - 1).abs(),
            "below",
            limit,
        )
    )


def _steady(clients: int, samples: int) -> bool:
    """Whether the loss has a finite variance, so that its mean can be measured."""
    return clients == 1 or samples >= 5


def _measured_excess(
    settings: FFASettings, seeds: Sequence[int], clients: int, samples: int, device: torch.device
) -> torch.Tensor:
    """c̃ of each seed, from the loss on the samples b was fitted to: [S]."""
    problem = homogeneous(seeds, clients, settings.ffa_dimension, settings.delta0, settings.norm, device)
    losses = ffa_draws(problem, samples, settings.ffa_draws)
    return (losses.sharper / (settings.norm * settings.delta0) ** 2 - 1).mean(dim=1)
