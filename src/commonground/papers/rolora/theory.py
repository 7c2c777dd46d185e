"""RoLoRA's theory: the angle falls as Lemma 5.3 and Theorem 5.4 say, FFA-LoRA's loss stays as Proposition 5.5 says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field

from commonground.errors import ConfigError
from commonground.papers.claims import claim
from commonground.papers.experiment import Experiment
from commonground.papers.figures import Curve, Figure, median_curve
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.papers.rolora.ffa import FFASettings, judge_ffa, judge_frozen_clients_that_differ
from commonground.papers.rolora.premise import always, enough_samples, too_few
from commonground.theory.checks import positive
from commonground.theory.rolora import (
    Draw,
    Problem,
    Trace,
    angles,
    contracts,
    expected_ffa_loss,
    homogeneous,
    lemma_factor,
    lemma_step_limit,
    rolora,
    rolora_steps,
    theorem_rounds,
    two_cycle,
)
from commonground.theory.rolora.bounds import SMALLEST
from commonground.theory.threads import one_thread

__all__: list[str] = []

PAPER = "RoLoRA"
DRAWN = 1e-16  # smallest angle in a figure with a logarithmic axis: the rounding of a unit vector
SEEDS = 40
DRAWS: dict[Draw, str] = {
    "step": 'anew for each updating step ("m the number of samples for each updating step"), as the proof needs',
    "round": "anew per round, the same for b and a",
    "fixed": "once for all rounds",
}


class RoLoRATheory(FFASettings):
    """What the experiment is run with, beside :class:`~commonground.papers.rolora.ffa.FFASettings`.

    Attributes:
        l_max: L_max of Assumption 5.1; ‖b*‖ itself if None.
        step: η; half the lemma's limit 1/L_max² if None.
        near_limit: another step, as a share of the limit, at which the theorem is judged.
        rounds: shown in the figures.
        most_rounds: Theorem 5.4 is judged where it asks for no more.
        draw: when samples are drawn.
        epsilon: ε of Theorem 5.4.
        vary_clients, vary_samples, vary_dimension: one varies, the others stay.
    """

    l_max: float | None = None
    step: float | None = None
    near_limit: float = Field(default=0.95, gt=0, lt=1)
    rounds: int = Field(default=30, ge=1)
    most_rounds: int = Field(default=3000, ge=1)
    draw: Draw = "step"
    epsilon: float = Field(default=1e-6, ge=1e-12, lt=1)
    vary_clients: tuple[int, ...] = (1, 10, 50)
    vary_samples: tuple[int, ...] = (2, 10, 50)
    vary_dimension: tuple[int, ...] = (5, 20, 60)

    def limit(self) -> float:
        """1/L_max², the largest step of Lemma 5.3."""
        largest = self.norm if self.l_max is None else self.l_max
        positive("norm", self.norm)
        if largest < self.norm:
            raise ConfigError(f"l_max is {largest:g}; Assumption 5.1 has ‖b*‖ ≤ L_max, and ‖b*‖ is {self.norm:g}")
        return 1 / largest**2

    def problem(self, seeds: Sequence[int], device: torch.device) -> Problem:
        """Clients alike."""
        return homogeneous(seeds, self.clients, self.dimension, self.delta0, self.norm, device)


@one_thread()
def _run(request: Request) -> Outcome:
    settings = request.choose(RoLoRATheory(), RoLoRATheory())
    seeds = request.seed_range(SEEDS)
    limit = settings.limit()
    if not SMALLEST < settings.delta0 < 1:
        raise ConfigError(f"delta0 is {settings.delta0:g}; it must lie strictly between {SMALLEST:g} (rounding) and 1")
    step = 0.5 * limit if settings.step is None else settings.step
    steps = [step, settings.near_limit * limit, limit]
    shares = [eta * settings.norm**2 for eta in steps]  # c = η‖b*‖² of each
    problem = settings.problem(seeds, request.device)
    needed = [_needed(settings, c) for c in shares]
    longest = max(settings.rounds, *(n for n in needed if n is not None), 0)
    trace = rolora_steps(problem, longest, steps, settings.samples, settings.draw)
    exact = rolora_steps(problem, longest, steps)  # infinitely many samples

    outcome = Outcome(settings=settings.model_dump(mode="json") | {"l_max": limit**-0.5, "step": step})
    outcome.figures |= _angles(settings, seeds, step, request.device)
    outcome.figures["contraction per round"] = _ratios(settings, trace, exact, steps)
    _judge_lemma(outcome, settings, trace, exact, steps)
    _judge_theorem(outcome, settings, trace, steps, needed)
    judge_ffa(outcome, settings, request, seeds)
    judge_frozen_clients_that_differ(outcome, settings, seeds, request.device)
    outcome.figures["loss on new samples"] = _losses(settings, trace)
    _remark(outcome, settings, shares)
    return outcome


def _needed(settings: RoLoRATheory, c: float) -> int | None:
    """Theorem 5.4's rounds, or None where it says nothing or asks for too many."""
    if not 0 < c < 1:
        return None
    rounds = theorem_rounds(settings.delta0, settings.epsilon, c)
    return rounds if rounds <= settings.most_rounds else None


def _drawn(delta: torch.Tensor) -> torch.Tensor:
    return delta.clamp_min(DRAWN)


def _angles(settings: RoLoRATheory, seeds: Sequence[int], step: float, device: torch.device) -> dict[str, Figure]:
    """δ^t for several N, m, d."""
    c, x = step * settings.norm**2, list(range(settings.rounds + 1))
    bound = [max(settings.delta0 * lemma_factor(settings.delta0, c) ** t, DRAWN) for t in x]
    exact = _drawn(angles(settings.delta0, c, settings.rounds)).tolist()
    varied: list[tuple[str, str, Sequence[int]]] = [
        ("clients", "N", settings.vary_clients),
        ("samples", "m", settings.vary_samples),
        ("dimension", "d", settings.vary_dimension),
    ]
    figures = {}
    for name, symbol, values in varied:
        lines = {}
        for value in values:
            chosen = settings.model_copy(update={name: value})
            run = rolora(chosen.problem(seeds, device), settings.rounds, step, chosen.samples, settings.draw)
            lines[f"{symbol} = {value}"] = median_curve(x, _drawn(run.delta))
        lines["m = ∞ (exact)"] = Curve(x, exact)
        lines["Lemma 5.3's bound"] = Curve(x, bound)
        rest = [("N", settings.clients), ("m", settings.samples), ("d", settings.dimension)]
        others = ", ".join(f"{s} = {v}" for s, v in rest if s != symbol)
        figures[f"angle by {name}"] = Figure(
            "round",
            "angle distance δ",
            lines,
            log_y=True,
            reads=f"{others}, η‖b*‖² = {c:g}. Lines are medians, bands their 95 % intervals; angles below {DRAWN:g} "
            "(rounding) are drawn there.",
        )
    return figures


def _ratios(settings: RoLoRATheory, trace: Trace, exact: Trace, steps: Sequence[float]) -> Figure:
    """δ^{t+1}/δ^t at the chosen step and at the limit, beside what the lemma claims."""
    lines = {}
    for which, name in ((0, "η chosen"), (2, "η = 1/L_max²")):
        factor = lemma_factor(settings.delta0, steps[which] * settings.norm**2)
        for run, samples in ((trace, f"m = {settings.samples}"), (exact, "m = ∞")):
            delta = run.delta[:, which, : settings.rounds + 1]
            judged = int(contracts(delta, factor)[1].all(dim=0).int().cumprod(dim=0).sum())
            ratio = delta[:, 1 : judged + 1] / delta[:, :judged]
            lines[f"{name}, {samples}"] = median_curve(range(1, judged + 1), ratio)
        lines[f"{name}, Lemma 5.3"] = Curve([1, settings.rounds], [factor, factor])
    return Figure(
        "round",
        "δ after / δ before",
        lines,
        reads="Lines are medians, bands their 95 % intervals, as far as the angle is above rounding; the lemma claims "
        "that a line stays at or below its own bound.",
    )


def _judge_lemma(outcome: Outcome, settings: RoLoRATheory, trace: Trace, exact: Trace, steps: Sequence[float]) -> None:
    enough = enough_samples(settings.samples, settings.dimension)
    cases = [
        (trace, 0, f"η = {steps[0]:g}, m = {settings.samples}", enough),
        (trace, 2, f"its limit η = 1/L_max² = {steps[2]:g}, m = {settings.samples}", enough),
        (exact, 2, f"its limit η = 1/L_max² = {steps[2]:g}, infinitely many samples", True),
    ]
    for run, which, where, speaks in cases:
        factor = lemma_factor(settings.delta0, steps[which] * settings.norm**2)
        holds, judged = contracts(run.delta[:, which], factor)
        outcome.claims.append(
            always(
                f"At {where}, δ shrinks by {factor:.4g} = √(1 − η(1 − (δ^0)²)‖b*‖²) or more in every round of every "
                "seed (share of seeds)",
                f"{PAPER}, Lemma 5.3",
                holds | ~judged,
                speaks,
            )
        )


def _judge_theorem(
    outcome: Outcome, settings: RoLoRATheory, trace: Trace, steps: Sequence[float], needed: Sequence[int | None]
) -> None:
    source, epsilon = f"{PAPER}, Theorem 5.4", settings.epsilon
    enough = enough_samples(settings.samples, settings.dimension)
    for which in (0, 1):
        rounds = needed[which]
        if rounds is None:
            continue
        share = steps[which] * settings.norm**2
        where = f"η = {steps[which]:g} (c = η‖b*‖² = {share:g}), T = {rounds}"
        reached = trace.delta[:, which, rounds] <= epsilon
        outcome.claims.append(always(f"At {where}: δ^T ≤ ε = {epsilon:g} (share of seeds)", source, reached, enough))
        if which:
            continue
        spare = (1 - settings.delta0**2) / 16
        error = trace.error[:, which, rounds]
        center: Literal["mean", "median"] = "mean" if settings.samples >= 5 else "median"  # as heavy-tailed as b is
        close = error <= (1 + spare) * epsilon * settings.norm
        beside = [
            always(
                f"At {where}: ‖a^T(b^{{T+1}})ᵀ − a*b*ᵀ‖ ≤ (1 + ε')ε‖b*‖ with the largest ε' = (1 − (δ^0)²)/16 allowed "
                "(share of seeds)",
                source,
                close,
                enough,
            ),
            claim(
                f"At {where}: RoLoRA's loss is at most (1 + ε)‖b*‖²ε² ({center} loss as a multiple of it)",
                f"{PAPER}, Section 5.1",
                "at most 1",
                error.square() / ((1 + epsilon) * settings.norm**2 * epsilon**2),
                "below",
                1.0,
                center=center,
            ),
            claim(
                f"At {where}: RoLoRA's loss is below FFA-LoRA's with the same samples in round one (orders of "
                "magnitude)",
                f"{PAPER}, Section 5.1",
                "below",
                2 * (trace.error[:, which, 0] / error.clamp_min(DRAWN * settings.norm)).log10(),
                "above",
                0.0,
            ),
        ]
        outcome.claims += beside if enough else [replace(one, holds=None) for one in beside]


def _losses(settings: RoLoRATheory, trace: Trace) -> Figure:
    """RoLoRA's loss per round, FFA-LoRA's with as many samples, and FFA-LoRA's expectation."""
    x = list(range(settings.rounds + 1))
    loss = trace.error[:, 0, : settings.rounds + 1].square() / settings.norm**2
    lines = {"RoLoRA": median_curve(x, loss.clamp_min(DRAWN**2))}
    frozen = loss[:, :1].expand(-1, len(x))  # before the first step of a it is FFA-LoRA
    lines["FFA-LoRA"] = median_curve(x, frozen)
    if settings.samples > 2:
        level = expected_ffa_loss(settings.clients, settings.samples, settings.delta0, 1.0, on="new")
        lines["FFA-LoRA, expected"] = Curve(x, [level] * len(x))
    return Figure(
        "round",
        "loss / ‖b*‖²",
        lines,
        log_y=True,
        reads="Mean squared error on new samples; lines are medians, bands their 95 % intervals. FFA-LoRA solves for b "
        "once and stays.",
    )


def _remark(outcome: Outcome, settings: RoLoRATheory, shares: Sequence[float]) -> None:
    c, near, limit = shares
    outcome.notes += [
        "Section 5 has no experiment of its own, so both scales are the same setting, chosen here. b_i is exact "
        f"least squares on a client's m samples; samples are drawn {DRAWS[settings.draw]}.",
        "The theorem's c ∈ (0, 1) is η‖b*‖², as eqs. (123) and (167) have it. Equation (9) is judged in the appendix's "
        "form (80): as printed, ‖b*‖² stands outside the root.",
        f"Lemma 5.3 with infinitely many samples holds up to η = {lemma_step_limit(settings.delta0):.4g}/‖b*‖² = "
        "(3 + (δ^0)²)/4 of 1/‖b*‖², not up to 1/L_max² where L_max = ‖b*‖: near the solution a round multiplies δ by "
        "|1 − 2η‖b*‖²|, which is 1 at that limit, where δ falls like 1/√(8t) only. The proof's eq. (101) puts a "
        "lower bound of ‖b̄‖² into the absolute value of eq. (100), harmless for η ≤ 1/(2L_max²) (the limit of Theorem "
        "A.14). With L_max ≥ 1.155‖b*‖ the lemma's own limit is safe. More in rolora-step-size.",
        "c̃ of Proposition 5.5 is exact as derived in eq. (242). It does not depend on δ^0 or d, |c̃| ≤ 1/(Nm) for m "
        "≥ 3, and it is negative for m ≥ 4 because b is judged on the samples it was fitted to (on new ones the "
        "excess is +1/(N(m − 2))). For m ≤ 2 and N ≥ 2 the expected loss is infinite, which the proposition does not "
        "exclude; for m ≤ 4 its variance is, so those rows are shown and not judged.",
    ]
    outcome.notes += too_few(settings.samples, settings.dimension, "Lemma 5.3 and Theorem 5.4 ask")
    if c >= 1:
        outcome.notes.append(
            f"The step size is too large: η‖b*‖² = {c:g} is not below 1, so RoLoRA does not converge. It does not grow "
            f"either, because a is normalised; with infinitely many samples it swings at δ = {two_cycle(c):.4g}. "
            "Theorem 5.4 is not judged at it."
        )
    elif c > limit * (1 + 1e-12):
        outcome.notes.append(
            f"The step's η‖b*‖² = {c:g} is above the lemma's limit {limit:.4g}; it is judged all the same."
        )
    for share in {c, near}:
        if 0 < share < 1 and _needed(settings, share) is None:
            rounds = theorem_rounds(settings.delta0, settings.epsilon, share)
            outcome.notes.append(
                f"Theorem 5.4 at c = {share:g} asks for {rounds} rounds, more than most_rounds = "
                f"{settings.most_rounds}, and was not judged."
            )
    if limit < 1 - 1e-12:  # not by rounding alone
        outcome.notes.append(f"L_max is larger than ‖b*‖: at the lemma's limit η‖b*‖² = {limit:.4g}.")


Experiment(
    "rolora-theory",
    "RoLoRA's angle and FFA-LoRA's loss on the linear model",
    f"{PAPER}, Section 5",
    _run,
    float64=True,
)
