"""FLUTE's Figure 4: other ratios of the two penalties, few samples per client, and where it diverges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from commonground.errors import ConfigError, DivergenceError
from commonground.papers.claims import claim, fraction
from commonground.papers.experiment import Experiment
from commonground.papers.figures import Figure, mean_curve, median_curve
from commonground.papers.flute.comparison import short, thinned
from commonground.papers.flute.linear import LETTERS, check_rank
from commonground.papers.outcome import Claim, Outcome
from commonground.papers.request import Request, Settings
from commonground.statistics import Values, as_array, median_interval
from commonground.theory.checks import at_least, positive
from commonground.theory.flute.method import Convention, flute
from commonground.theory.flute.problem import Generator, models, random_start, sample_problem
from commonground.theory.flute.references import best_rank_k, local_least_squares, mean_client_error, rank_k_floor
from commonground.theory.flute.trajectory import Trajectory
from commonground.theory.threads import one_thread

__all__: list[str] = []

SOURCE = "Liu, Shen and Yang 2024, Figure 4 and App. C.1"
SIZES = {"d", "k", "clients", "samples"}
SEEDS = 60
CLAIMED = (8, 9, 10)  # N for which the paper names the best ratio; it shows 11 as well
LIMIT = 2.0  # γ1/γ2 above which the penalty is unbounded below
Fixed = Literal["gamma1", "gamma2"]
NAMES: dict[str, str] = {"gaussian": "Gaussian Φ", "spectrum": "singular values 2d/(i+1)"}


class PenaltySettings(Settings):
    """The numbers of Figure 4 (App. C.1).

    Attributes:
        ratios, diverging: γ1/γ2, up to 2 and beyond it.
        fixed: which of the two has Theorem 5.1's value while the other follows from the ratio; the paper does not say.
        gamma1, gamma2: these values.
        loss: of which the data's gradients are; ``half-square`` as in App. A.1, which writes FLUTE's update out with
            the penalty's weights of Theorem 5.1, or ``square`` as in §4.3. Beside a gradient half as large the
            penalty weighs twice as much.
        claimed_best: the ratio that the paper finds best, for N = 8, 9 and 10.
        rounds: T; what diverges is also looked at after ``long_rounds``.
        alpha: of the random start; None: 1/(10d).
        every: rounds between two points of a curve.
    """

    also: ClassVar[Mapping[str, str]] = {**LETTERS, "K": "k"}

    generators: tuple[Generator, ...] = ("spectrum", "gaussian")
    d: int = 10
    k: int = 6
    clients: int = 10
    samples: tuple[int, ...] = (8, 9, 10, 11)
    noise_variance: float = 0.3
    gamma1: float = 0.25
    gamma2: float = 0.125
    fixed: tuple[Fixed, ...] = ("gamma1", "gamma2")
    loss: Literal["square", "half-square"] = "half-square"
    ratios: tuple[float, ...] = (2.0, 1.0, 2 / 3)
    claimed_best: float = 1.0
    diverging: tuple[float, ...] = (2.5, 3.0, 4.0)
    step: float = 0.03
    alpha: float | None = None
    rounds: int = 500
    long_rounds: int = 4000
    every: int = 5

    def check(self) -> None:
        """Refuse settings that make no sense before anything is run.

        Raises:
            ConfigError: naming the setting.
        """
        at_least("d", self.d, 1, "inputs")
        at_least("clients", self.clients, 1)
        check_rank("k", self.k, self.d, self.clients)
        if not self.samples or not self.generators or not self.fixed:
            raise ConfigError("samples, generators and fixed must name at least one value each")
        for samples in self.samples:
            at_least("samples", samples, 1, "per client")
        at_least("noise_variance", self.noise_variance, 0)
        at_least("rounds", self.rounds, 1)
        at_least("long_rounds", self.long_rounds, self.rounds, "not before the last of rounds")
        at_least("every", self.every, 1)
        positive("gamma1", self.gamma1)
        positive("gamma2", self.gamma2)
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

    @property
    def curvature(self) -> float:
        """By how much the data's objective curves along a balanced pair where a client's covariance is I: the factor of
        its gradient.
        """
        return 2.0 if self.loss == "square" else 1.0

    def penalties(self, fixed: Fixed, ratio: float) -> tuple[float, float]:
        """(γ1, γ2) of a ratio."""
        return (self.gamma1, self.gamma1 / ratio) if fixed == "gamma1" else (self.gamma2 * ratio, self.gamma2)

    def held(self, fixed: Fixed) -> str:
        """How the choice is told."""
        return f"γ1 = {self.gamma1:g}" if fixed == "gamma1" else f"γ2 = {self.gamma2:g}"

    def beside_theorem(self, fixed: Fixed) -> str:
        """The same with what Theorem 5.1 has."""
        value, theirs = (self.gamma1, 1 / 4) if fixed == "gamma1" else (self.gamma2, 1 / 8)
        return f"{self.held(fixed)} ({'' if value == theirs else f'{theirs:g} in '}Theorem 5.1)"


@dataclass(frozen=True)
class Panel:
    """One generator, N and choice of what is fixed: the runs by γ1/γ2."""

    generator: Generator
    samples: int
    fixed: Fixed
    held: str
    runs: dict[float, Trajectory]
    floor: Values
    local: Values
    best_norm: torch.Tensor  # ‖Φ_k‖_F
    softest: torch.Tensor  # smallest eigenvalue of any client's covariance Σ_i, [S]

    @property
    def name(self) -> str:
        """How it is named in texts."""
        return f"N = {self.samples}, {NAMES[self.generator]}, {self.held}"


@one_thread()
def _run(request: Request) -> Outcome:
    settings = request.choose(PenaltySettings(), PenaltySettings())
    settings.check()
    seeds = request.seed_range(SEEDS)
    grid = [(g, n, fixed) for g in settings.generators for fixed in settings.fixed for n in settings.samples]
    panels = [
        _panel(settings, seeds, *point, request.device) for point in request.progress(grid, "penalties", len(grid))
    ]
    outcome = Outcome(settings=settings.model_dump(mode="json"))
    claimed = [panel for panel in panels if panel.samples in CLAIMED] or panels
    outcome.claims = [c for panel in claimed for c in _best_claims(panel, settings)]
    outcome.claims += _divergence_claims(panels, settings)
    for panel in panels:
        lines = {}
        for ratio in settings.ratios:
            path = panel.runs[ratio]
            shown = thinned(path.rounds)
            errors = path.error[:, shown]
            lines[f"γ1 = {_ratio(ratio)}γ2"] = short(median_curve([path.rounds[i] for i in shown], errors))
        ends = [0, settings.rounds]
        lines["rank-k floor"] = short(mean_curve(ends, np.repeat(panel.floor[:, None], 2, axis=1)))
        lines["Local least squares (median)"] = short(median_curve(ends, np.repeat(panel.local[:, None], 2, axis=1)))
        outcome.figures[f"error by round, {panel.name}"] = Figure(
            "round", "(1/M) Σ ‖Bw_i − φ_i‖", lines, reads="Lines are medians over seeds, bands their 95 % intervals."
        )
    outcome.add_table("error after the last round", [_row(panel, r) for panel in panels for r in settings.ratios])
    outcome.add_table(
        "where γ1 > 2γ2", [_diverged_row(panel, r, settings) for panel in panels for r in settings.diverging]
    )
    outcome.notes = _notes(settings, panels)
    return outcome


def _notes(settings: PenaltySettings, panels: Sequence[Panel]) -> list[str]:
    gone = [
        f"{int((~panel.runs[r].finished).sum())} with γ1 = {_ratio(r)}γ2, {panel.name}"
        for panel in panels
        for r in settings.ratios
        if not bool(panel.runs[r].finished.all())
    ]
    papers = settings.model_dump(include=SIZES) == PenaltySettings().model_dump(include=SIZES)
    sizes = "Both scales are the paper's own sizes. " if papers else ""
    weight = "" if settings.curvature == 2 else f"{2 / settings.curvature:g}"  # of the penalty beside the data's part
    return [
        f"{sizes}The paper does not say which of γ1 and γ2 it holds fixed, which Φ it "
        f"draws, nor how many rounds it runs: here {' and '.join(map(settings.beside_theorem, settings.fixed))} "
        f"in turn, the other by the ratio; both generators of Φ; {settings.rounds} rounds. Gradients are those of the "
        f"{'halved squares, as in App. A.1' if settings.loss == 'half-square' else 'squares, as in §4.3'}; --set loss= "
        "takes the other, beside which the same penalty weighs "
        f"{'half' if settings.loss == 'half-square' else 'twice'} as much.",
        "For γ1 ≤ 2γ2 the penalty is at least (2γ2 − γ1)‖BW‖²_F ≥ 0 and shrinks the model like a ridge penalty (with "
        f"known Φ the limit is Φ_k/(1 + {weight}(2γ2 − γ1))), which helps when samples are few and noisy. For γ1 > 2γ2 "
        "the penalty of a balanced pair is −(γ1 − 2γ2)‖BW‖²_F: the objective is unbounded below as soon as the "
        f"covariance of some client's samples has an eigenvalue below {weight}(γ1 − 2γ2), always for N < d. That says "
        "where BW may go, not that it goes there soon: it may rest at a stationary point or take long to leave it.",
        "Divergence: an entry of B or W beyond 10¹² times the largest entry of Φ, or no longer a number. What has not "
        f"diverged within {settings.rounds} rounds may do so later, as the counts after {settings.long_rounds} show, "
        "or rest at a BW that is far too large: see the table. With γ2 fixed the same ratio is a larger γ1, and more "
        "diverges sooner.",
        "A run that diverges is counted, not left out"
        + (f" ({'; '.join(gone)})" if gone else " (none does for γ1 ≤ 2γ2 here)")
        + ": its error counts as it was when last within range, larger than any other, which medians can bear.",
        "Local least squares takes the model of least norm where N < d. Where it lies below FLUTE's lines, every "
        "client does better alone.",
    ]


def _panel(
    settings: PenaltySettings,
    seeds: Sequence[int],
    generator: Generator,
    samples: int,
    fixed: Fixed,
    device: torch.device,
) -> Panel:
    phi = models(generator, seeds, settings.d, settings.clients, device)
    problem = sample_problem(seeds, phi, samples, settings.noise_variance)
    start = random_start(problem, settings.k, 1 / (10 * settings.d) if settings.alpha is None else settings.alpha)
    runs = {}
    for ratio in (*settings.ratios, *settings.diverging):
        gamma1, gamma2 = settings.penalties(fixed, ratio)
        beyond = ratio > LIMIT
        try:
            runs[ratio] = flute(
                problem,
                settings.k,
                settings.long_rounds if beyond else settings.rounds,
                settings.step,
                start,
                gamma1=gamma1,
                gamma2=gamma2,
                convention=Convention(loss=settings.loss),
                every=settings.rounds if beyond else settings.every,
                on_divergence="record" if beyond else "most",
            )
        except DivergenceError as error:
            raise DivergenceError(f"with γ1 = {_ratio(ratio)}γ2, N = {samples}: {error}") from None
    local = as_array(mean_client_error(local_least_squares(problem), phi))
    best = torch.linalg.matrix_norm(best_rank_k(phi, settings.k))
    floor = as_array(rank_k_floor(phi, settings.k))
    assert problem.covariance is not None
    softest = torch.linalg.eigvalsh(problem.covariance).amin(dim=(1, 2))
    return Panel(generator, samples, fixed, settings.held(fixed), runs, floor, local, best, softest)


def _best_claims(panel: Panel, settings: PenaltySettings) -> list[Claim]:
    chosen = panel.runs[settings.claimed_best].error[:, -1]
    named = panel.samples in CLAIMED and settings.claimed_best == 1
    return [
        claim(
            f"γ1 = {_ratio(settings.claimed_best)}γ2 is better than γ1 = {_ratio(ratio)}γ2, {panel.name}: difference "
            f"of their errors after {settings.rounds} rounds (median), above 0",
            SOURCE,
            "γ1 = γ2 best for N = 8, 9 and 10" if named else None,
            panel.runs[ratio].error[:, -1] - chosen,
            "above",
            center="median",
        )
        for ratio in settings.ratios
        if ratio != settings.claimed_best
    ]


def _divergence_claims(panels: Sequence[Panel], settings: PenaltySettings) -> list[Claim]:
    horizons = dict.fromkeys((settings.rounds, settings.long_rounds))
    return [
        fraction(
            f"γ1 = {_ratio(ratio)}γ2 diverges, {NAMES[generator]}, {settings.held(fixed)}: share of runs over all N "
            f"that diverge within {horizon} rounds, at least half",
            SOURCE,
            "‖BW‖_F usually diverges for γ1 > 2γ2",
            torch.stack(
                [_by(p.runs[ratio], horizon) for p in panels if (p.generator, p.fixed) == (generator, fixed)], dim=1
            ),
            0.5,
        )
        for generator in settings.generators
        for fixed in settings.fixed
        for ratio in settings.diverging
        for horizon in horizons
    ]


def _by(run: Trajectory, horizon: int) -> torch.Tensor:
    """Which seeds have diverged within so many rounds: [S]."""
    return (run.diverged >= 0) & (run.diverged <= horizon)


def _row(panel: Panel, ratio: float) -> dict[str, str | int | float]:
    run = panel.runs[ratio]
    middle, low, high = (round(float(v), 4) for v in median_interval(as_array(run.error[:, -1])))
    lowest = as_array(run.error.median(dim=0).values)
    return {
        "Φ": NAMES[panel.generator],
        "fixed": panel.held,
        "N": panel.samples,
        "γ1/γ2": round(ratio, 4),
        "error (median)": middle,
        "low": low,
        "high": high,
        "seeds that diverge": int((~run.finished).sum()),
        "lowest error": round(float(lowest.min()), 4),
        "in round": run.rounds[int(lowest.argmin())],
        "rank-k floor": round(float(panel.floor.mean()), 4),
        "Local least squares, median": round(float(np.median(panel.local)), 4),
    }


def _diverged_row(panel: Panel, ratio: float, settings: PenaltySettings) -> dict[str, str | int | float]:
    run = panel.runs[ratio]
    ended = run.diverged[run.diverged >= 0]
    gamma1, gamma2 = settings.penalties(panel.fixed, ratio)
    rest = (torch.linalg.matrix_norm(run.B @ run.W) / panel.best_norm)[run.finished]
    counts = {
        f"diverged within {horizon}": int(_by(run, horizon).sum())
        for horizon in dict.fromkeys((settings.rounds, settings.long_rounds))
    }
    return {
        "Φ": NAMES[panel.generator],
        "fixed": panel.held,
        "N": panel.samples,
        "γ1/γ2": round(ratio, 4),
        "seeds": len(run.diverged),
        "with an objective unbounded below": int(
            (panel.softest < 2 / settings.curvature * (gamma1 - 2 * gamma2)).sum()
        ),
        **counts,
        "in round (median)": int(ended.median()) if len(ended) else "–",
        "‖BW‖_F/‖Φ_k‖_F of the others (median)": round(float(rest.median()), 2) if len(rest) else "–",
    }


def _ratio(ratio: float) -> str:
    return "" if ratio == 1 else "(2/3)" if abs(ratio - 2 / 3) < 1e-3 else f"{ratio:g}"


Experiment("flute-fig4", "FLUTE with other ratios of its penalties, few samples", SOURCE, _run, float64=True)
