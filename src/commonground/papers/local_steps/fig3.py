"""Figure 3: with global updates normal features are learned, then noise is memorised, confounding features never."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from commonground.papers.claims import claim
from commonground.papers.experiment import Experiment
from commonground.papers.figures import Curve, Figure, median_curve
from commonground.papers.local_steps.features import PAPER, SEEDS, FeatureSettings, by_group, in_every_client, remarks
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request
from commonground.statistics import as_array
from commonground.theory import checks
from commonground.theory.features import (
    FeatureModel,
    Problem,
    Trajectory,
    descend,
    draw_problem,
    feature_threshold,
    learning_rounds,
    memorisation_rounds,
    noise_threshold,
    recorded_rounds,
)
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = f"{PAPER}, Figure 3"
LAST = "last, over its scale"
LEMMA_1, LEMMA_3 = f"{PAPER}, Lemma 5.1", f"{PAPER}, Lemma 5.3"


class Fig3Settings(FeatureSettings):
    """As :class:`~commonground.papers.local_steps.features.FeatureSettings`, with more recorded rounds.

    Attributes:
        growth: multiples of d at which the noise of normal clients is measured as well, to see how it scales with d.
    """

    points: int = 100
    growth: tuple[float, ...] = (0.5, 2.0, 4.0)

    def at(self, times: float) -> Fig3Settings:
        """The same in so many times the dimensions."""
        return self.model_copy(update={"d": max(1, round(times * self.d))})


@one_thread()
def _run(request: Request) -> Outcome:
    settings = request.choose(Fig3Settings(), Fig3Settings())
    for times in settings.growth:
        checks.positive("growth", times)
    model, problem, run = _measure(settings, request)
    rounds = settings.global_rounds(model)
    gamma, xi = _leading(run, problem)
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    lines: dict[str, Curve] = {}
    for kind, mask in by_group(model).items():
        which = model.held[mask].unique()
        lines[f"Γ of {kind} features"] = median_curve(run.rounds, gamma[..., which].median(-1).values)
        of_clients = xi[:, :, mask].flatten(2)
        lines[f"yΞ in {kind} clients"] = median_curve(run.rounds, of_clients.median(-1).values)
    largest = (run.xi * problem.labels[:, None, :, None, :]).amax(3)[:, :, model.confounded].flatten(2)
    lines["yΞ in confounding clients, largest of all filters"] = median_curve(run.rounds, largest.median(-1).values)
    positive = all(min(line.low or line.mean) > 0 for line in lines.values())
    outcome.figures["growth of signal and noise with global updates"] = Figure(
        "rounds",
        "Γ and yΞ of the leading filter",
        lines,
        log_y=positive,
        reads="Lines are medians over seeds of the median feature or sample, bands their 95 % intervals. Filters lead "
        "that are largest at the start, as in the paper; a sample may be memorised by another.",
    )
    _judge(outcome, settings, problem, run)
    if model.K0 < model.K and settings.growth:
        found = {model.d: _normal_noise(model, run)}
        for times in settings.growth:
            other, _, its = _measure(settings.at(times), request)
            found[other.d] = _normal_noise(other, its)
        _judge_scaling(outcome, found)
    outcome.notes += [
        *remarks(settings, model),
        f"Scales with constant 1: features K/(ηα³σ0) = {learning_rounds(model, settings.eta):.0f} rounds, noise "
        f"Nn/(η(√dσ_ξ)³σ0) = {memorisation_rounds(model, settings.eta):.0f}. First rounds are among those recorded, "
        f"every {rounds / max(len(run.rounds) - 1, 1):.0f} rounds.",
        "Õ hides constants and powers of log d. Here log d itself stands for it, so what exceeds it may still be "
        "within the paper's order; the value is what counts. Where a stage is never reached, the last round stands in.",
    ]
    return outcome


def _measure(settings: Fig3Settings, request: Request) -> tuple[FeatureModel, Problem, Trajectory]:
    model = settings.model()
    problem = draw_problem(model, request.seed_range(SEEDS), request.device)
    rounds = settings.global_rounds(model)
    record = recorded_rounds(rounds, settings.points)
    run = descend(problem, "global", settings.eta, rounds, record=record, dynamics=settings.dynamics)
    return model, problem, run


def _normal_noise(model: FeatureModel, run: Trajectory) -> torch.Tensor:
    """The largest |Ξ| of normal clients over all recorded rounds, [S]."""
    return run.xi.abs().amax(3)[:, :, ~model.confounded].amax((1, 2, 3))


def _judge_scaling(outcome: Outcome, found: Mapping[int, torch.Tensor]) -> None:
    """Whether the noise falls with d as d^-1/2 does, up to a factor log d: the slope of its logarithm over log d, by
    least squares in every seed.
    """
    widths = sorted(found)
    if len(widths) < 2:
        outcome.notes.append(
            f"The one dimension d = {widths[0]} shows no fall with d: --set 'growth=[2,4]' adds others."
        )
        return
    d = np.log(np.array(widths, dtype=float))
    x = (d - d.mean()) / np.square(d - d.mean()).sum()
    most = -0.5 + float(np.log(d) @ x)
    outcome.claims.append(
        claim(
            f"largest |Ξ| of normal clients over all recorded rounds falls with d from {widths[0]} to {widths[-1]} as "
            f"(log d)·d^-1/2 or faster: exponent of d (median over seeds), at most {most:.2f}",
            f"{PAPER}, Induction hypothesis B.1 (b)",
            "Õ(d^-1/2) for any t",
            np.log(np.stack([as_array(found[width]) for width in widths], 1)) @ x,
            "below",
            most,
            center="median",
        )
    )
    rows = [
        {"d": width, "largest |Ξ| of normal clients (median)": float(values.median()),
         "times √d": float(values.median()) * math.sqrt(width)}
        for width, values in sorted(found.items())
    ]  # fmt: skip
    outcome.add_table("noise of normal clients by dimension", rows)


def _leading(run: Trajectory, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Γ_{r*,k} and y_ij Ξ_{r*,ij} with r* the largest at the start: [S, R, K] and [S, R, N, n] (Appendix B)."""
    gamma = run.gamma[:, :, 0]  # [S, R, m, K]
    first = gamma[:, :1].argmax(2, keepdim=True).expand(-1, gamma.shape[1], 1, -1)
    signed = run.xi * problem.labels[:, None, :, None, :]  # [S, R, N, m, n]
    own = signed[:, :1].argmax(3, keepdim=True).expand(-1, signed.shape[1], -1, 1, -1)
    return gamma.gather(2, first).squeeze(2), signed.gather(3, own).squeeze(3)


def _first(run: Trajectory, reached: torch.Tensor) -> torch.Tensor:
    """First recorded index with every case reached, [S]; the number of records where there is none.

    Args:
        run: gives the rounds.
        reached: [S, R, cases].
    """
    done = reached.all(2)
    return torch.where(done.any(1), done.int().argmax(1), len(run.rounds))


def _judge(outcome: Outcome, settings: Fig3Settings, problem: Problem, run: Trajectory) -> None:
    model = problem.model
    gamma = run.gamma[:, :, 0].amax(2)  # [S, R, K]
    signed = (run.xi * problem.labels[:, None, :, None, :]).amax(3)  # yΞ, [S, R, N, n]
    noise = run.xi.abs().amax((2, 3, 4))  # of every client, [S, R]
    hidden, records = model.confounded, len(run.rounds)
    memorised = _first(run, (signed[:, :, hidden] >= noise_threshold(model)).flatten(2))
    confounding = run.gamma[:, :, 0, :, : model.K0].abs().amax((2, 3))  # [S, R]
    rounds = torch.tensor([*run.rounds, run.rounds[-1]], device=run.gamma.device)
    rows: list[dict[str, Any]] = []

    def at(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return values.gather(1, index.clamp_max(records - 1)[:, None])[:, 0]

    def row(what: str, index: torch.Tensor, scale: float) -> None:
        seeds = index < records
        found = rounds[index][seeds].double()
        rows.append(
            {"stage": what, "seeds": int(seeds.sum()), "median round": None, "first": None, "last": None, LAST: None}
        )
        if len(found):
            rows[-1] |= {"median round": float(found.median()), "first": float(found.min()), "last": float(found.max())}
            rows[-1][LAST] = round(float(found.max()) / scale, 3)

    logarithm = math.log(model.d)
    growth = f"as a multiple of its start (median; Õ is judged by log d = {logarithm:.1f})"
    if model.K0 < model.K:
        learned = _first(run, gamma[:, :, model.K0 :] >= feature_threshold(model))
        row("all normal features learned", learned, learning_rounds(model, settings.eta))
        outcome.claims += [
            in_every_client(
                "a normal feature is learned, Γ ≥ 1/(m^(1/3)α), by the end",
                LEMMA_1,
                "by T_v",
                gamma[:, -1, model.K0 :] >= feature_threshold(model),
                of="seed and feature",
            ),
            claim(
                f"when all normal features are learned: largest |Γ| of the confounding ones, {growth}",
                LEMMA_1,
                "Õ(σ0)",
                (at(confounding, learned) / confounding[:, 0]),
                "below",
                logarithm,
                center="median",
            ),
            claim(
                f"when all normal features are learned: largest |Ξ| of all clients, {growth}",
                LEMMA_1,
                "Õ(σ0 σ_ξ √d)",
                (at(noise, learned) / noise[:, 0]),
                "below",
                logarithm,
                center="median",
            ),
            claim(
                "rounds until the confounding clients' noise is memorised, as a multiple of those until the normal "
                "features are learned (median)",
                SOURCE,
                "above 1",
                (rounds[memorised].double() / rounds[learned].clamp_min(1)),
                "above",
                1.0,
                center="median",
            ),
        ]
    row("all noise of confounding clients memorised", memorised, memorisation_rounds(model, settings.eta))
    outcome.claims += [
        in_every_client(
            "a sample of a confounding client is memorised, yΞ ≥ m^(-1/3), by the end",
            LEMMA_3,
            "by T_ξ",
            (signed[:, -1, hidden] >= noise_threshold(model)).flatten(1),
            of="seed and sample",
        ),
        claim(
            f"when all of it is memorised: largest |Γ| of the confounding features, {growth}",
            LEMMA_3,
            "Õ(σ0)",
            (at(confounding, memorised) / confounding[:, 0]),
            "below",
            logarithm,
            center="median",
        ),
        in_every_client(
            "a confounding feature is not learned by the end",
            SOURCE,
            "never",
            gamma[:, -1, : model.K0] < feature_threshold(model),
            of="seed and feature",
        ),
    ]
    outcome.add_table("stages", rows)


Experiment("local-steps-fig3", "growth of signal and noise with global updates (Figure 3)", SOURCE, _run, float64=True)
