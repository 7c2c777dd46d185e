"""FLUTE's Theorem 5.5 by number: entering time, bound and true rate with known Φ, and what N samples leave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from commonground.errors import ConfigError
from commonground.papers.claims import claim, fraction
from commonground.papers.experiment import Experiment
from commonground.papers.figures import Curve, Figure, median_curve
from commonground.papers.flute.comparison import short
from commonground.papers.flute.linear import LETTERS, check_rank
from commonground.papers.outcome import Outcome
from commonground.papers.request import Request, Settings
from commonground.statistics import as_array
from commonground.theory.checks import at_least, positive
from commonground.theory.flute.bounds import (
    asymptotic_rate,
    entering_time,
    gap,
    in_region,
    step_size_limit,
    theorem_bound,
    theorem_constant,
)
from commonground.theory.flute.method import APPENDIX, BODY, Convention, flute, flute_round
from commonground.theory.flute.problem import (
    LinearProblem,
    harmonic_singular_values,
    models_with_singular_values,
    population_problem,
    random_start,
    sample_problem,
)
from commonground.theory.flute.trajectory import Trajectory
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = "Liu, Shen and Yang 2024, Theorem 5.5 and App. A.2"
SEEDS = 40
CONVENTIONS = {"eqs. (5), (6)": BODY, "App. A.1's form": APPENDIX}
LONGEST = 200_000  # rounds
MEDIANS = "Lines are medians over seeds, bands their 95 % intervals."
DONE = 1e-12  # relative distance that counts as machine precision: rounding leaves about 1e-14


class TheoremSettings(Settings):
    """The numbers of the check; Theorem 5.5 itself names none but γ1, γ2, α and the limit of η."""

    also: ClassVar[Mapping[str, str]] = LETTERS

    d: int = 10
    clients: int = 15
    k: int = 2
    lambda_1: float = 2.0  # Φ's largest singular value
    lambda_k: float = 1.8
    lambda_after: float = 0.4  # λ_{k+1}; the following ones are λ_{k+1}/2, /3, …
    alpha: float | None = None  # 1/(10d)
    step: float | None = None  # Theorem 5.1's limit Δ²/(228 λ_1³)
    rounds: int | None = None  # as many as T_R and the rate ask for
    practical_step: float = 0.03
    practical_ks: tuple[int, ...] = (2, 4, 6, 8)  # with singular values 2d/(i+1)
    samples: tuple[int, ...] = (100, 400, 1600, 6400)
    noise_variance: float = 0.3
    sample_rounds: int = 600

    def check(self) -> None:
        """Refuse settings that make no sense before anything is run.

        Raises:
            ConfigError: naming the setting.
        """
        at_least("d", self.d, 1, "inputs")
        at_least("clients", self.clients, 1)
        check_rank("k", self.k, self.d, self.clients, " (--set k=…)")
        for k in self.practical_ks:
            check_rank("practical_ks", k, self.d, self.clients, " (--set practical_ks=…)")
        if not self.lambda_1 >= self.lambda_k > self.lambda_after >= 0:
            raise ConfigError(
                f"lambda_1, lambda_k and lambda_after are {self.lambda_1:g}, {self.lambda_k:g} and "
                f"{self.lambda_after:g}; the theorem needs λ_1 ≥ λ_k > λ_(k+1) ≥ 0"
            )
        if len(set(self.samples)) < 2:
            raise ConfigError(f"samples is {list(self.samples)}; a slope needs at least two different numbers")
        for samples in self.samples:
            at_least("samples", samples, 1, "per client")
        at_least("noise_variance", self.noise_variance, 0)
        at_least("sample_rounds", self.sample_rounds, 1)
        positive("practical_step", self.practical_step)
        positive("alpha", self.start_deviation)
        if self.step is not None:
            positive("step", self.step)
        if self.rounds is not None:
            at_least("rounds", self.rounds, 1)

    @property
    def start_deviation(self) -> float:
        """α of the random start."""
        return 1 / (10 * self.d) if self.alpha is None else self.alpha

    @property
    def singular_values(self) -> list[float]:
        """Φ's, in descending order."""
        top = torch.linspace(self.lambda_1, self.lambda_k, self.k, dtype=torch.float64, device="cpu").tolist()
        return top + [self.lambda_after / i for i in range(1, min(self.d, self.clients) - self.k + 1)]


@dataclass(frozen=True)
class Known:
    """A run with known Φ.

    Attributes:
        path: of FLUTE.
        rate: the predicted factor per round near the end, [S].
        measured: the factor measured between two small distances, [S].
        relative: ‖BW − Φ_k‖_F/‖Φ_k‖_F after the last round, [S].
    """

    path: Trajectory
    rate: torch.Tensor
    measured: torch.Tensor
    relative: torch.Tensor


@one_thread()
def _run(request: Request) -> Outcome:
    settings = request.choose(TheoremSettings(), TheoremSettings())
    settings.check()
    seeds = request.seed_range(SEEDS)
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    phi = models_with_singular_values(seeds, settings.d, settings.clients, settings.singular_values, request.device)
    values = phi.new_tensor([settings.singular_values]).expand(len(seeds), -1)
    step = float(step_size_limit(values, settings.k)[0]) if settings.step is None else settings.step
    problem = population_problem(seeds, phi)
    start = random_start(problem, settings.k, settings.start_deviation)
    entering = entering_time(phi, settings.k, *start, step)
    constant = theorem_constant(values, settings.k, step, entering)
    if not bool(torch.isfinite(constant).all()):
        raise ConfigError(f"the bound's constant overflows for a step of {step:g}; set a smaller step")
    table = []
    for name, convention in CONVENTIONS.items():
        known = _known(problem, settings.k, step, start, entering, convention, settings.rounds)
        times = phi.new_tensor(known.path.rounds)
        bound = theorem_bound(values, settings.k, step, settings.clients, times, constant)
        entered = _first_inside(phi, settings.k, start, step, convention, known.path.rounds[-1])
        _judge_theorem(outcome, settings, name, known, bound, entering, entered, step)
        table.append(_theorem_row(name, settings, values, step, known, bound, entering, entered, constant))
    outcome.add_table("Theorem 5.5 with known Φ", table)
    _practical(outcome, settings, seeds, request.device)
    _samples(outcome, settings, seeds, phi)
    delta = float(gap(values, settings.k)[0])
    outcome.notes = [
        "Both scales are the same: the theorem names no sizes. Its η ≤ Δ²/(228 λ_1³) makes a spectrum with a narrow "
        "gap hopeless to run (App. C.1's 2d/(i+1) with d = 10 and k = 8 needs millions of rounds), so Φ here has "
        f"the singular values {', '.join(f'{v:.3g}' for v in settings.singular_values)}: Δ = {delta:.3g}, "
        f"η = {step:.3g}.",
        "The proof's steps need η ≤ Δ²/(36 λ*_1³) = Δ²/(288 λ_1³), less than the 228 the theorem states.",
        "Constants: c_2 = 1600 (1 − ηΔ/16)^(−T_R) is what App. A.2.4 arrives at, with T_R of eq. (16) from each seed's "
        "start. It is far from tight: the table gives the smallest c_2 that would do after T_R, and a claim judges the "
        "bound's rate alone, with the bound set equal to the error at T_R. The error counts as within a bound down to "
        "1e-12 λ_1, where rounding stops it.",
        "T_R counts rounds of the appendix's update, whose data gradient is half that of eqs. (5), (6).",
        "Rates: 1 − 2η(λ_k − λ_(k+1)) per round for eqs. (5), (6), 1 − η(λ_k − λ_(k+1)) for the appendix's form, "
        "against the bound's 1 − ηΔ/16 = 1 − η(λ_k − λ_(k+1))/8.",
        "With samples the theorem asks for an N that grows like (1 − ηΔ/16)^(−2T) with an unnamed constant; what can "
        "be checked is that the error levels off and how its level falls with N. Samples are fixed, η = "
        f"{settings.practical_step:g}, {settings.sample_rounds} rounds.",
    ]
    return outcome


def _known(
    problem: LinearProblem,
    k: int,
    step: float,
    start: tuple[torch.Tensor, torch.Tensor],
    entering: torch.Tensor,
    convention: Convention,
    rounds: int | None = None,
) -> Known:
    """Run with known Φ until it must have converged."""
    values = torch.linalg.svdvals(problem.phi)
    rate = asymptotic_rate(values, k, step, problem.clients, convention, dimension=problem.phi.shape[1])
    slowest = float(rate.max())
    if slowest >= 1:
        raise ConfigError(
            f"a step of {step:g} is too large for λ_1 = {float(values.max()):g}: near Φ_k the error would be "
            f"multiplied by {slowest:g} per round"
        )
    needed = float(entering.max()) + 36 / -math.log(slowest) if rounds is None else rounds
    if needed > LONGEST:
        raise ConfigError(
            f"a step of {step:g} with this gap takes about {needed:.0f} rounds; widen the gap, or set step or rounds"
        )
    path = flute(problem, k, math.ceil(needed), step, start, convention=convention)
    size = values[:, :k].square().sum(dim=1).sqrt()
    relative = path.to_best / size[:, None]
    return Known(path, rate, _late_rate(relative), relative[:, -1])


def _late_rate(relative: torch.Tensor) -> torch.Tensor:
    """Factor per round from a relative distance of 1e-8 to one of 1e-12 (or over the last quarter, if not reached)."""
    last = relative.shape[1] - 1
    rates = []
    for row in relative.clamp(min=1e-300):
        begin, end = (int((row < level).int().argmax()) for level in (1e-8, DONE))
        if not 0 < begin < end:
            begin, end = 3 * last // 4, last
        rates.append(float((row[end] / row[begin]) ** (1 / max(end - begin, 1))))
    return relative.new_tensor(rates)


def _judge_theorem(
    outcome: Outcome,
    settings: TheoremSettings,
    name: str,
    known: Known,
    bound: torch.Tensor,
    entering: torch.Tensor,
    entered: torch.Tensor,
    step: float,
) -> None:
    path = known.path
    rounding = DONE * settings.lambda_1
    after = torch.tensor(path.rounds, device=entering.device)[None, :] > entering[:, None]
    line = _anchored(path, entering, 1 - step * _delta(settings) / 16)
    within = (path.mean_to_best <= bound + rounding) | ~after
    anchored = (path.mean_to_best <= line + rounding) | ~after
    if bool(after.any()):
        outcome.claims += [
            fraction(
                f"The bound (8) holds in every round after T_R, {name} (share of seeds)",
                SOURCE,
                "for all T_R < t ≤ T",
                within,
            ),
            fraction(
                f"The error falls at least as fast as (1 − ηΔ/16)^t after T_R, {name}: share of seeds at or below that "
                "line from the error at T_R in every round",
                SOURCE,
                None,
                anchored,
            ),
        ]
    outcome.claims += [
        fraction(
            f"Θ is in the region ℛ by round T_R, {name}: share of seeds",
            "Liu, Shen and Yang 2024, Prop. A.2",
            "for some t ≤ T_R, α small enough",
            (entered <= entering.ceil()),
        ),
        claim(
            f"The error vanishes with known Φ, {name}: ‖BW − Φ_k‖_F/‖Φ_k‖_F after {path.rounds[-1]} rounds, below "
            f"{DONE:g}",
            SOURCE,
            "converges to the optimum exponentially fast",
            known.relative,
            "below",
            DONE,
            center="median",
        ),
        claim(
            f"Rate near the end, {name}: log of the measured factor per round over the log of the "
            f"predicted one, {'1 − 2η' if name == 'eqs. (5), (6)' else '1 − η'}(λ_k − λ_(k+1)), 1 within 2 %",
            SOURCE,
            None,
            torch.log(known.measured) / torch.log(known.rate),
            "within",
            1.0,
            tolerance=0.02,
            center="median",
        ),
    ]
    shown = sorted({*np.linspace(0, len(path.rounds) - 1, 60).astype(int).tolist()})
    x = [path.rounds[i] for i in shown]
    outcome.figures[f"error and bound with known Φ, {name}"] = Figure(
        "round",
        "(1/M) Σ ‖Bw_i − (Φ_k)_i‖",
        {
            "FLUTE": _positive(median_curve(x, path.mean_to_best[:, shown])),
            "bound (8), from T_R on": _bound_curve(path, bound, entering, shown),
            "(1 − ηΔ/16)^t from the error at T_R": _bound_curve(path, line, entering, shown),
        },
        log_y=True,
        reads=MEDIANS,
    )


def _delta(settings: TheoremSettings) -> float:
    return 2 * (settings.lambda_k - (settings.lambda_after if len(settings.singular_values) > settings.k else 0.0))


def _anchored(path: Trajectory, entering: torch.Tensor, factor: float) -> torch.Tensor:
    """The error at T_R (rounded up) times factor^(t − T_R): [S, R]."""
    begin = entering.ceil().long().clamp(max=path.rounds[-1])
    at = path.mean_to_best.gather(1, begin[:, None])
    exponent = torch.tensor(path.rounds, device=begin.device)[None, :] - begin[:, None]
    line: torch.Tensor = at * factor ** exponent.clamp(min=0).to(at.dtype)
    return line


def _bound_curve(path: Trajectory, bound: torch.Tensor, entering: torch.Tensor, shown: Sequence[int]) -> Curve:
    begin = float(entering.max())
    kept = [i for i in shown if path.rounds[i] >= begin] or [shown[-1]]
    return _positive(median_curve([path.rounds[i] for i in kept], bound[:, kept]))


def _positive(curve: Curve) -> Curve:
    """Keep a curve on a logarithmic axis: a distance of exactly zero is drawn at 1e-17."""
    return short(curve.changed(lambda values: [max(float(v), 1e-17) for v in values]))


def _theorem_row(
    name: str,
    settings: TheoremSettings,
    values: torch.Tensor,
    step: float,
    known: Known,
    bound: torch.Tensor,
    entering: torch.Tensor,
    entered: torch.Tensor,
    constant: torch.Tensor,
) -> dict[str, Any]:
    path = known.path
    rounds = torch.tensor(path.rounds, device=entering.device)
    after = (rounds[None, :] > entering[:, None]) & (path.mean_to_best > DONE * settings.lambda_1)
    ratio = torch.where(after, path.mean_to_best / bound, torch.zeros_like(bound)).amax(dim=1)
    return {
        "update": name,
        "η": float(f"{step:.4g}"),
        "Δ": round(float(gap(values, settings.k)[0]), 4),
        "rounds": path.rounds[-1],
        "T_R (median)": round(float(entering.median()), 1),
        "first round in the region ℛ (median)": int(entered.median()),
        "seeds in ℛ by T_R": int((entered <= entering.ceil()).sum()),
        "seeds": len(entering),
        "c_2 of the proof (median)": float(f"{float(constant.median()):.4g}"),
        "smallest c_2 that would do (largest over seeds)": float(f"{float((ratio * constant).max()):.4g}"),
        "bound's factor per round": round(1 - step * float(gap(values, settings.k)[0]) / 16, 6),
        "predicted factor near the end": round(float(known.rate.median()), 6),
        "measured factor (median)": round(float(known.measured.median()), 6),
        "‖BW − Φ_k‖_F/‖Φ_k‖_F at the end (median)": float(f"{float(known.relative.median()):.2g}"),
    }


def _first_inside(
    phi: torch.Tensor,
    k: int,
    start: tuple[torch.Tensor, torch.Tensor],
    step: float,
    convention: Convention,
    rounds: int,
    stride: int = 10,
) -> torch.Tensor:
    """First round (looked at every ``stride``, and so up to that much late) with Θ in ℛ; ``rounds`` + 1 if none."""
    problem = population_problem(range(len(phi)), phi)
    B, W = start
    entered = torch.full((len(phi),), rounds + 1, device=phi.device)
    for round_ in range(rounds + 1):
        if round_ % stride == 0:
            entered = torch.where(in_region(phi, k, B, W), entered.clamp(max=round_), entered)
            if bool((entered <= rounds).all()):
                break
        B, W = flute_round(problem, B, W, step, step, 0.25, 0.125, convention)
    return entered


def _practical(outcome: Outcome, settings: TheoremSettings, seeds: Sequence[int], device: torch.device) -> None:
    """App. C.1's step and spectrum, which the theorem's limit on η excludes: rate and end with known Φ."""
    values = harmonic_singular_values(settings.d, settings.clients)
    phi = models_with_singular_values(seeds, settings.d, settings.clients, values, device)
    problem = population_problem(seeds, phi)
    rows = []
    for k in settings.practical_ks:
        start = random_start(problem, k, settings.start_deviation)
        entering = entering_time(phi, k, *start, settings.practical_step)
        known = _known(problem, k, settings.practical_step, start, entering, BODY)
        ratio = torch.log(known.measured) / torch.log(known.rate)
        rows.append(
            {
                "k": k,
                "η": settings.practical_step,
                "Theorem 5.1's limit of η": float(f"{float(step_size_limit(torch.linalg.svdvals(phi), k)[0]):.3g}"),
                "rounds": known.path.rounds[-1],
                "predicted factor near the end": round(float(known.rate.median()), 6),
                "measured factor (median)": round(float(known.measured.median()), 6),
                "‖BW − Φ_k‖_F/‖Φ_k‖_F at the end (largest)": float(f"{float(known.relative.max()):.2g}"),
            }
        )
        outcome.claims += [
            claim(
                f"The error vanishes with known Φ also at App. C.1's step {settings.practical_step:g} and spectrum, "
                f"k = {k}: ‖BW − Φ_k‖_F/‖Φ_k‖_F after {known.path.rounds[-1]} rounds, below {DONE:g}",
                SOURCE,
                None,
                known.relative,
                "below",
                DONE,
                center="median",
            ),
            claim(
                f"Rate near the end at App. C.1's step and spectrum, k = {k}: log of the measured factor over that of "
                "the predicted one, 1 − 2η(λ_k − λ_(k+1)), 1 within 2 %",
                SOURCE,
                None,
                ratio,
                "within",
                1.0,
                tolerance=0.02,
                center="median",
            ),
        ]
    outcome.add_table("known Φ with singular values 2d/(i+1)", rows)


def _samples(outcome: Outcome, settings: TheoremSettings, seeds: Sequence[int], phi: torch.Tensor) -> None:
    """How the error that is left falls with N."""
    counts = sorted(set(settings.samples))
    left, lines = [], {}
    for n in counts:
        problem = sample_problem(seeds, phi, n, settings.noise_variance)
        start = random_start(problem, settings.k, settings.start_deviation)
        path = flute(problem, settings.k, settings.sample_rounds, settings.practical_step, start, every=10)
        left.append(path.mean_to_best[:, -1])
        lines[f"N = {n}"] = _positive(median_curve(path.rounds, path.mean_to_best))
    errors = as_array(torch.stack(left, dim=1))
    x = np.log(counts)
    slopes = ((x - x.mean()) @ np.log(errors).T) / ((x - x.mean()) ** 2).sum()
    label = "(1/M) Σ ‖Bw_i − (Φ_k)_i‖"
    outcome.figures["error to Φ_k by round, N samples per client"] = Figure(
        "round", label, lines, log_y=True, reads=MEDIANS
    )
    measured = median_curve(counts, errors)
    outcome.figures[f"error to Φ_k after {settings.sample_rounds} rounds by N"] = Figure(
        "samples per client N",
        label,
        {
            "FLUTE": short(measured),
            "1/√N through the first": short(Curve(counts, [measured.mean[0] * (counts[0] / n) ** 0.5 for n in counts])),
        },
        log_x=True,
        log_y=True,
        reads=MEDIANS,
    )
    outcome.claims.append(
        claim(
            f"The error falls like 1/√N: slope of log error to Φ_k against log N, N = {counts[0]} … {counts[-1]}, "
            "−1/2 within 0.05",
            "Liu, Shen and Yang 2024, Theorem 5.1 (N of order 1/ε²)",
            -0.5,
            slopes,
            "within",
            -0.5,
            tolerance=0.05,
        )
    )


Experiment(
    "flute-theorem5.5",
    "FLUTE's convergence against Theorem 5.5, with known Φ and with N samples",
    SOURCE,
    _run,
    float64=True,
)
