"""What FLUTE's Figures 1 and 3 share: their settings, and FLUTE, FedRep and FedRep(RI) on the same problems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from commonground.errors import ConfigError, DivergenceError
from commonground.papers.request import Request, Settings
from commonground.statistics import Values, as_array
from commonground.theory.checks import at_least, positive
from commonground.theory.flute.fedrep import fedrep, moment_start
from commonground.theory.flute.method import Convention, flute
from commonground.theory.flute.problem import Generator, models, random_start, sample_problem
from commonground.theory.flute.references import local_least_squares, mean_client_error, rank_k_floor
from commonground.theory.flute.trajectory import Trajectory

__all__ = ["EQUAL", "LETTERS", "ComparisonSettings", "ProblemCell", "check_rank", "compare_all", "effective_step"]

AT_ONCE = 20  # seeds whose moments fit into a core's cache
SEEDS = 80  # differences between the methods are a tenth of what they vary over seeds
LETTERS = {"dimension": "d", "M": "clients", "n": "clients", "N": "samples", "m": "samples", "eta": "step"}
"""Other names of settings: the paper's M and N, and FedRep's n and m for the same."""
EQUAL = "FedRep at FLUTE's effective step"


class ComparisonSettings(Settings):
    """The numbers of Figures 1 and 3 (§7.1, App. C.1)."""

    also: ClassVar[Mapping[str, str]] = {**LETTERS, "k": "ks"}

    generator: Generator = "spectrum"
    d: int = 10
    ks: tuple[int, ...] = (2, 4, 6, 8)
    clients: tuple[int, ...] = (15, 30)
    samples: tuple[int, ...] = (12, 20)
    noise_variance: float = 0.3
    gamma1: float = 0.25  # Theorem 5.1's, as γ2; the figures name neither
    gamma2: float = 0.125
    step: float = 0.03
    alpha: float | None = None  # 1/(10d)
    rounds: int = 500
    every: int = 5  # most rounds between two points of a curve
    horizons: tuple[int, ...] = (10, 50, 100, 200)  # rounds to judge at, beside the last
    within: float = 0.05
    fedrep_steps: tuple[float, ...] = (0.03, 0.1)  # tried beside `step`
    sum_or_mean: Literal["sum", "mean", "mean-B"] = "sum"
    loss: Literal["square", "half-square"] = "square"

    def check(self) -> None:
        """Refuse settings that make no sense before anything is run.

        Raises:
            ConfigError: naming the setting.
        """
        for name, values in (("ks", self.ks), ("clients", self.clients), ("samples", self.samples)):
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}; it must name at least one value, each once")
        at_least("d", self.d, 1, "inputs")
        for clients in self.clients:
            at_least("clients", clients, 1)
            for k in self.ks:
                check_rank("k", k, self.d, clients)
        for samples in self.samples:
            at_least("samples", samples, 1, "per client")
        at_least("noise_variance", self.noise_variance, 0)
        at_least("rounds", self.rounds, 1)
        at_least("every", self.every, 1)
        at_least("within", self.within, 0)
        positive("gamma1", self.gamma1)
        positive("gamma2", self.gamma2)
        for step in (self.step, *self.fedrep_steps):
            positive("a step size", step)
        positive("alpha", self.start_deviation)

    @property
    def judged(self) -> list[int]:
        """The rounds at which methods are compared: the horizons before the last round, and the last."""
        return [*sorted(h for h in set(self.horizons) if 0 < h < self.rounds), self.rounds]

    @property
    def recorded_every(self) -> int:
        """Rounds between two that are recorded: ``every``, or fewer, so that those that are judged are among them."""
        return math.gcd(self.every, *self.judged[:-1])

    @property
    def start_deviation(self) -> float:
        """α of the random start."""
        return 1 / (10 * self.d) if self.alpha is None else self.alpha


@dataclass(frozen=True)
class ProblemCell:
    """One (M, N, k): every method on the same problems, of S seeds."""

    clients: int
    samples: int
    k: int
    flute: Trajectory
    fedrep: Trajectory
    random: Trajectory  # FedRep(RI)
    best: Trajectory  # FedRep with the step of least training loss
    best_step: float
    equal: Trajectory  # FedRep with the step that contracts per round as FLUTE's does, see effective_step
    equal_step: float
    floor: Values
    local: Values
    zero: Values  # mean ‖φ_i‖

    @property
    def name(self) -> str:
        """How it is named in texts."""
        return f"M = {self.clients}, N = {self.samples}, k = {self.k}"

    @property
    def rounds(self) -> list[int]:
        """The rounds recorded."""
        return self.flute.rounds

    @property
    def paths(self) -> dict[str, Trajectory]:
        """The methods drawn, by name."""
        return {"FLUTE": self.flute, "FedRep": self.fedrep, EQUAL: self.equal, "FedRep(RI)": self.random}

    @property
    def finished(self) -> npt.NDArray[np.bool_]:
        """Seeds with which none of them diverges: [S]."""
        every: npt.NDArray[np.bool_] = np.all([path.finished.cpu().numpy() for path in self.paths.values()], axis=0)
        return every

    def gain(self, other: Trajectory, round: int | None = None) -> Values:
        """How far FLUTE's error lies below another method's after a round (by default the last): [S]."""
        at = -1 if round is None else self.rounds.index(round)
        return as_array(other.error[:, at] - self.flute.error[:, at])

    def rounds_saved(self, other: Trajectory, within: float) -> Values:
        """How many rounds earlier FLUTE comes within a share of the lower of both methods' last errors: [S]."""
        target = (1 + within) * torch.minimum(self.flute.error[:, -1], other.error[:, -1])
        return _first(other, target) - _first(self.flute, target)


def check_rank(name: str, k: int, d: int, clients: int, hint: str = "") -> None:
    """Refuse a rank that no Φ of these sizes has; ``name`` is the setting that it is or, unless that is k, is one of.

    Raises:
        ConfigError: k < 1 or k > min(d, M).
    """
    at_least(name, k, 1, "columns of the representation B")
    if k > min(d, clients):
        holds = "k is" if name == "k" else f"{name} holds"
        raise ConfigError(f"{holds} {k}, with M = {clients}; it must be at most min(d, M) = min({d}, {clients}){hint}")


def compare_all(request: Request, settings: ComparisonSettings) -> list[ProblemCell]:
    """Run every (M, N, k) for the request's seeds.

    Raises:
        ConfigError: settings make no sense.
        DivergenceError: a method leaves every range with most seeds, with the cell it did so in.
    """
    settings.check()
    seeds = request.seed_range(SEEDS)
    convention = Convention(settings.sum_or_mean, settings.loss)
    steps = tuple(dict.fromkeys((settings.step, *settings.fedrep_steps)))
    grid = [(m, n, k) for m in settings.clients for n in settings.samples for k in settings.ks]
    cells = []
    for m, n, k in request.progress(grid, "FLUTE and FedRep", len(grid)):
        phi = models(settings.generator, seeds, settings.d, m, request.device)
        equal_step = settings.step * effective_step(phi, k, convention)
        parts = [
            _runs(settings, seeds[at : at + AT_ONCE], phi[at : at + AT_ONCE], n, k, (*steps, equal_step))
            for at in range(0, len(seeds), AT_ONCE)
        ]
        path, random, *tried, equal, locals_ = zip(*parts, strict=True)
        joined = [Trajectory.joined(each) for each in tried]
        losses = [float(t.loss[:, -1].mean()) for t in joined]
        best = losses.index(min(losses))
        references = (rank_k_floor(phi, k), torch.cat(locals_), mean_client_error(torch.zeros_like(phi), phi))
        cells.append(
            ProblemCell(
                m,
                n,
                k,
                Trajectory.joined(path),
                joined[0],
                Trajectory.joined(random),
                joined[best],
                steps[best],
                Trajectory.joined(equal),
                equal_step,
                *map(as_array, references),
            )
        )
    return cells


def _runs(
    settings: ComparisonSettings, seeds: Sequence[int], phi: torch.Tensor, n: int, k: int, steps: Sequence[float]
) -> tuple[Any, ...]:
    """FLUTE, FedRep(RI), FedRep with each of these steps, and what Local least squares leaves [S]."""
    convention = Convention(settings.sum_or_mean, settings.loss)
    problem = sample_problem(seeds, phi, n, settings.noise_variance)
    start = random_start(problem, k, settings.start_deviation)
    how: dict[str, Any] = {"every": settings.recorded_every, "on_divergence": "most"}
    try:
        penalty: dict[str, Any] = {"gamma1": settings.gamma1, "gamma2": settings.gamma2}
        path = flute(problem, k, settings.rounds, settings.step, start, convention=convention, **penalty, **how)
        moments = moment_start(problem, k)
        tried = [fedrep(problem, k, settings.rounds, step, moments, **how) for step in steps]
        random = fedrep(problem, k, settings.rounds, settings.step, start[0], **how)
    except DivergenceError as error:
        raise DivergenceError(f"with M = {problem.clients}, N = {n}, k = {k}: {error}") from None
    return path, random, *tried, mean_client_error(local_least_squares(problem), phi)


def effective_step(phi: torch.Tensor, k: int, convention: Convention) -> float:
    """FedRep's η over FLUTE's with which both contract alike per round near Φ_k with known Φ (median over seeds).

    There FLUTE multiplies its slowest error by 1 − ηg(λ_k − λ_(k+1)), g = 2 or the convention's factor (see
    :func:`~commonground.theory.flute.bounds.asymptotic_rate`). FedRep with exact heads W = BᵀΦ steps along
    (2η/M)(I − BBᵀ)ΦΦᵀB, a power iteration: what of B lies along u_(k+1) is multiplied by 1 − (2η/M)(λ_k² − λ_(k+1)²).
    The two are equal for M g/(2(λ_k + λ_(k+1))) times FLUTE's η. Where the convention's two factors differ (``mean-B``)
    their geometric mean stands for g.
    """
    values = torch.linalg.svdvals(phi)
    following = values[:, k] if k < values.shape[1] else torch.zeros_like(values[:, 0])
    clients = phi.shape[2]
    body, head = convention.factors(clients)
    return float((clients * (body * head) ** 0.5 / (2 * (values[:, k - 1] + following))).median())


def _first(path: Trajectory, target: torch.Tensor) -> Values:
    """First recorded round with an error of at most ``target``, or one recording step after the last: [S]."""
    reached = path.error <= target[:, None]
    rounds = torch.tensor(path.rounds, dtype=torch.float64, device=target.device)
    beyond = rounds[-1] + (rounds[1] - rounds[0] if len(rounds) > 1 else 1)
    return as_array(torch.where(reached.any(dim=1), rounds[reached.int().argmax(dim=1)], beyond))
