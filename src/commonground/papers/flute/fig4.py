"""FLUTE's Figure 4: other ratios of the two penalties, few samples per client, and where it diverges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from commonground.errors import ConfigError, DivergenceError
from commonground.papers.claims import claim, fraction
from commonground.papers.experiment import Experiment, Request, Settings
from commonground.papers.figures import Figure, mean_curve, median_curve
from commonground.papers.flute.linear import short, thinned
from commonground.papers.outcome import Claim, Outcome
from commonground.statistics import Values, as_array, student_interval
from commonground.theory.checks import at_least, positive
from commonground.theory.flute.method import flute
from commonground.theory.flute.problem import Generator, models, random_start, sample_problem
from commonground.theory.flute.references import best_rank_k, local_least_squares, mean_client_error, rank_k_floor
from commonground.theory.flute.trajectory import Trajectory
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = "Liu, Shen and Yang 2024, Figure 4 and App. C.1"
SEEDS = 40
LIMIT = 2.0  # γ1/γ2 above which the penalty is unbounded below
NAMES: dict[str, str] = {"gaussian": "Gaussian Φ", "spectrum": "singular values 2d/(i+1)"}


class PenaltySettings(Settings):
    """The numbers of Figure 4 (App. C.1)."""

    generators: tuple[Generator, ...] = ("spectrum", "gaussian")
    d: int = 10
    k: int = 6
    clients: int = 10
    samples: tuple[int, ...] = (8, 9, 10, 11)
    noise_variance: float = 0.3
    gamma1: float = 0.25
    ratios: tuple[float, ...] = (2.0, 1.0, 2 / 3)  # γ1/γ2
    claimed_best: float = 1.0
    diverging: tuple[float, ...] = (2.5, 3.0, 4.0)
    step: float = 0.03
    alpha: float | None = None  # 1/(10d)
    rounds: int = 500
    every: int = 5

    def check(self) -> None:
        """Refuse settings that make no sense before anything is run.

        Raises:
            ConfigError: naming the setting.
        """
        at_least("d", self.d, 1, "inputs")
        at_least("clients", self.clients, 1)
        at_least("k", self.k, 1, "columns of the representation B")
        if self.k > min(self.d, self.clients):
            raise ConfigError(f"k is {self.k}; it must be at most min(d, M) = {min(self.d, self.clients)}")
        if not self.samples or not self.generators:
            raise ConfigError("samples and generators must name at least one value each")
        for samples in self.samples:
            at_least("samples", samples, 1, "per client")
        at_least("noise_variance", self.noise_variance, 0)
        at_least("rounds", self.rounds, 1)
        at_least("every", self.every, 1)
        positive("gamma1", self.gamma1)
        positive("step", self.step)
        if self.alpha is not None:
            positive("alpha", self.alpha)
        for ratio in (*self.ratios, *self.diverging):
            positive("γ1/γ2", ratio)
        if any(ratio > LIMIT for ratio in self.ratios) or any(ratio <= LIMIT for ratio in self.diverging):
            raise ConfigError(
                f"ratios {list(self.ratios)} must be at most 2 and diverging {list(self.diverging)} above 2 (γ1/γ2)"
            )
        if self.claimed_best not in self.ratios:
            raise ConfigError(f"claimed_best is {self.claimed_best:g}; it must be one of ratios {list(self.ratios)}")


@dataclass(frozen=True)
class Panel:
    """One generator and N: the runs by γ1/γ2."""

    generator: Generator
    samples: int
    runs: dict[float, Trajectory]
    floor: Values
    local: Values
    best_norm: torch.Tensor  # ‖Φ_k‖_F

    @property
    def name(self) -> str:
        """How it is named in texts."""
        return f"N = {self.samples}, {NAMES[self.generator]}"


@one_thread()
def _run(request: Request) -> Outcome:
    settings = request.choose(PenaltySettings(), PenaltySettings())
    settings.check()
    seeds = request.seed_range(SEEDS)
    grid = [(generator, n) for generator in settings.generators for n in settings.samples]
    panels = [
        _panel(settings, seeds, *point, request.device) for point in request.progress(grid, "penalties", len(grid))
    ]
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    outcome.claims = [c for panel in panels for c in _best_claims(panel, settings)] + _divergence_claims(
        panels, settings
    )
    for panel in panels:
        lines = {}
        for ratio in settings.ratios:
            path = panel.runs[ratio]
            shown = thinned(path.rounds)
            errors = path.error[:, shown]
            lines[f"γ1 = {_ratio(ratio)}γ2"] = short(mean_curve([path.rounds[i] for i in shown], errors))
        ends = [0, settings.rounds]
        lines["rank-k floor"] = short(mean_curve(ends, np.repeat(panel.floor[:, None], 2, axis=1)))
        lines["Local least squares (median)"] = short(median_curve(ends, np.repeat(panel.local[:, None], 2, axis=1)))
        outcome.figures[f"error by round, {panel.name}"] = Figure("round", "(1/M) Σ ‖Bw_i − φ_i‖", lines)
    outcome.add_table("error after the last round", [_row(panel, r) for panel in panels for r in settings.ratios])
    outcome.add_table("where γ1 > 2γ2", [_diverged_row(panel, r) for panel in panels for r in settings.diverging])
    outcome.notes = [
        "Both scales are the paper's own sizes. The paper does not say which of γ1 and γ2 it holds fixed, which Φ it "
        f"draws, nor how many rounds it runs: here γ1 = {settings.gamma1:g} as in Theorem 5.1, γ2 = γ1 over the ratio; "
        f"both generators of Φ; {settings.rounds} rounds.",
        "For γ1 ≤ 2γ2 the penalty is at least (2γ2 − γ1)‖BW‖²_F ≥ 0 and shrinks the model like a ridge penalty (with "
        "known Φ the limit is Φ_k/(1 + 2γ2 − γ1)), which helps when samples are few and noisy; for γ1 > 2γ2 it is "
        "unbounded below, and BW only stays finite where the samples pin it down.",
        "Divergence: an entry of B or W beyond 10¹² times the largest entry of Φ, or no longer a number. A run that "
        "has not diverged within the rounds may still do so, or rest at a BW that is far too large: see the table.",
        "Local least squares takes the model of least norm where N < d; near N = d its mean is heavy-tailed: the "
        "median is drawn. Where it lies below FLUTE's lines, every client does better alone.",
    ]
    return outcome


def _panel(
    settings: PenaltySettings, seeds: Sequence[int], generator: Generator, samples: int, device: torch.device
) -> Panel:
    phi = models(generator, seeds, settings.d, settings.clients, device)
    problem = sample_problem(seeds, phi, samples, settings.noise_variance)
    start = random_start(problem, settings.k, 1 / (10 * settings.d) if settings.alpha is None else settings.alpha)
    runs = {}
    for ratio in (*settings.ratios, *settings.diverging):
        try:
            runs[ratio] = flute(
                problem,
                settings.k,
                settings.rounds,
                settings.step,
                start,
                gamma1=settings.gamma1,
                gamma2=settings.gamma1 / ratio,
                every=settings.every,
                on_divergence="record" if ratio > LIMIT else "raise",
            )
        except DivergenceError as error:
            raise DivergenceError(f"with γ1 = {_ratio(ratio)}γ2, N = {samples}: {error}") from None
    local = mean_client_error(local_least_squares(problem), phi)
    best = torch.linalg.matrix_norm(best_rank_k(phi, settings.k))
    return Panel(generator, samples, runs, as_array(rank_k_floor(phi, settings.k)), as_array(local), best)


def _best_claims(panel: Panel, settings: PenaltySettings) -> list[Claim]:
    chosen = panel.runs[settings.claimed_best].error[:, -1]
    named = panel.samples in (8, 9, 10) and settings.claimed_best == 1
    return [
        claim(
            f"γ1 = {_ratio(settings.claimed_best)}γ2 is better than γ1 = {_ratio(ratio)}γ2, {panel.name}: difference "
            f"of their errors after {settings.rounds} rounds, above 0",
            SOURCE,
            "γ1 = γ2 best for N = 8, 9 and 10" if named else None,
            panel.runs[ratio].error[:, -1] - chosen,
            "above",
        )
        for ratio in settings.ratios
        if ratio != settings.claimed_best
    ]


def _divergence_claims(panels: Sequence[Panel], settings: PenaltySettings) -> list[Claim]:
    claims = []
    for generator in settings.generators:
        for ratio in settings.diverging:
            runs = [panel.runs[ratio] for panel in panels if panel.generator == generator]
            ended = torch.cat([run.diverged >= 0 for run in runs])
            claims.append(
                fraction(
                    f"γ1 = {_ratio(ratio)}γ2 diverges, {NAMES[generator]}: share of runs over all N that diverge "
                    f"within {settings.rounds} rounds, at least half",
                    SOURCE,
                    "‖BW‖_F usually diverges for γ1 > 2γ2",
                    ended,
                    0.5,
                    seeds=len(runs[0].diverged),
                )
            )
    return claims


def _row(panel: Panel, ratio: float) -> dict[str, str | int | float]:
    error = panel.runs[ratio].error
    mean, low, high = (round(float(v), 4) for v in student_interval(error[:, -1]))
    lowest = error.mean(dim=0)
    return {
        "Φ": NAMES[panel.generator],
        "N": panel.samples,
        "γ1/γ2": round(ratio, 4),
        "error": mean,
        "low": low,
        "high": high,
        "lowest error": round(float(lowest.min()), 4),
        "in round": panel.runs[ratio].rounds[int(lowest.argmin())],
        "rank-k floor": round(float(panel.floor.mean()), 4),
        "Local least squares, median": round(float(np.median(panel.local)), 4),
    }


def _diverged_row(panel: Panel, ratio: float) -> dict[str, str | int | float]:
    run = panel.runs[ratio]
    ended = run.diverged[run.diverged >= 0]
    rest = (torch.linalg.matrix_norm(run.B @ run.W) / panel.best_norm)[run.finished]
    return {
        "Φ": NAMES[panel.generator],
        "N": panel.samples,
        "γ1/γ2": round(ratio, 4),
        "seeds": len(run.diverged),
        "diverged": len(ended),
        "in round (median)": int(ended.median()) if len(ended) else "–",
        "‖BW‖_F/‖Φ_k‖_F of the others (median)": round(float(rest.median()), 2) if len(rest) else "–",
    }


def _ratio(ratio: float) -> str:
    return "" if ratio == 1 else "(2/3)" if abs(ratio - 2 / 3) < 1e-3 else f"{ratio:g}"


Experiment("flute-fig4", "FLUTE with other ratios of its penalties, few samples", SOURCE, _run, float64=True)
