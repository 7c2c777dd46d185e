"""What the linear figures of FedRep share: settings, step sizes chosen on other seeds, rounds to a distance."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from commonground.errors import ConfigError, DivergenceError
from commonground.papers.request import CPU, Settings
from commonground.theory.checks import OnDivergence
from commonground.theory.linear import (
    Alternation,
    Problem,
    Samples,
    Scaling,
    SingleModel,
    Start,
    StartName,
    Trajectory,
    alternate,
    check_dimensions,
    clients_per_round,
    draw_problem,
    draw_samples,
    make_start,
    smaller_step,
    step_limit,
    subset_extremes,
    usable_step,
)

__all__ = [
    "HEAD_LIMIT",
    "SEEDS",
    "Count",
    "Counts",
    "GridSettings",
    "LinearCase",
    "LinearSettings",
    "NotNegative",
    "Positive",
    "Positives",
    "ProblemSettings",
    "at_its_start",
    "choose_step",
    "common_step",
    "first_round",
    "refuse_divergence",
    "refuse_rise",
    "run_best",
    "safe_step",
    "show_rounds",
    "uneven",
]

HEAD_LIMIT = 0.25  # of steps along heads and along a single model, whose curvature is about 1 whatever W* is
SEEDS = 100  # a verdict on twenty changes with the first seed where an effect is small
TUNING = 1_000_000  # seeds from here on choose step sizes, those below are judged
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1)]
Positives = Annotated[tuple[Positive, ...], Field(min_length=1)]
Measure = Callable[[Trajectory], torch.Tensor]


class ProblemSettings(Settings):
    """Settings of every linear experiment, in the paper's letters; FLUTE's M and N, and words, will do as well.

    Attributes:
        d, k: dimensions of inputs and representation.
        noise: variance of the label noise (Section 5.1: 1e-3).
        rounds: T.
        scaling: of W*, see :func:`~commonground.theory.linear.draw_problem`.
        start: see :func:`~commonground.theory.linear.make_start`.
    """

    also: ClassVar[Mapping[str, str]] = {
        "dimension": "d",
        "clients": "n",
        "M": "n",
        "samples": "m",
        "N": "m",
        "eta": "step",
    }

    d: Count = 10
    k: Count = 2
    noise: NotNegative = 1e-3
    rounds: Count = 100
    scaling: Scaling = "rows"
    start: StartName = "projected-gradient"

    def check_space(self) -> None:
        """Refuse dimensions in which there is no representation to learn."""
        if self.k == self.d:
            raise ConfigError(f"k and d are both {self.k}: every representation is then the whole space; take k < d")


class LinearSettings(ProblemSettings):
    """The same with one participation rate.

    Attributes:
        r: participation rate.
    """

    r: float = 1.0

    def check(self, n: Sequence[int]) -> None:
        """Refuse dimensions that make no sense, before anything is computed."""
        self.check_space()
        for each in n:
            check_dimensions(self.d, self.k, each, self.noise)
            clients_per_round(each, self.r)


class GridSettings(LinearSettings):
    """The same for figures in which methods race, each with its own best step sizes.

    Attributes:
        step, head_step: None (the paper is silent) for the best pair of the grid, chosen on ``tuning_seeds`` seeds that
            are not judged, by the rounds of ``window``; see the experiment.
        steps, head_step_grid: the grid. Theorem 1 covers steps up to 1/(4 σ̄_max²), between 1/8 and 1/4 for k = 2; for
            the heads, gradient descent is stable up to 2/λ_max(BᵀX_iᵀX_iB/m), about 0.3 over many clients with m = 5.
        tuning_seeds: how many choose, the same whatever seeds are judged, so that the choice is one and not a part of
            what varies.
        window: rounds that are compared.
    """

    step: Positive | None = None
    head_step: Positive | None = None
    steps: Positives = (0.125, 0.25, 0.5, 1.0)
    head_step_grid: Positives = (0.0625, 0.125, 0.25)
    tuning_seeds: Count = 8
    window: tuple[Count, Count] = (10, 50)

    @property
    def tuned_on(self) -> range:
        """The seeds that choose step sizes."""
        return range(TUNING, TUNING + self.tuning_seeds)

    @property
    def rounds_compared(self) -> tuple[int, int]:
        """The window within the rounds there are."""
        low, high = sorted(min(edge, self.rounds) for edge in self.window)
        return low, high


def uneven(rates: Sequence[float], n: Sequence[int]) -> list[str]:
    """A note where rn is no whole number."""
    odd = [f"{r:g}·{each} as {clients_per_round(each, r)}" for r in rates for each in n if (r * each) % 1 > 1e-9]
    return [f"rn is rounded to whole clients: {', '.join(odd)}."] if odd else []


def at_its_start(samples: Sequence[int], k: int) -> list[str]:
    """A note where FedRep does not move with so many samples per client; with none of these, that it is not judged."""
    still = [m for m in samples if m <= k]
    if not still:
        return []
    note = (
        f"At m ≤ k (here m = {', '.join(map(str, still))}) the exact head fits a client's samples without residual, "
        "the gradient of B is zero, and FedRep stays at its start."
    )
    return [f"{note} What the paper says of it is shown and not judged." if len(still) == len(samples) else note]


@dataclass(frozen=True)
class LinearCase:
    """One problem of a figure: its number of clients and of samples per client, and how rounds see them."""

    settings: LinearSettings
    n: int
    m: int
    samples: Literal["fixed", "fresh"] = "fixed"
    device: torch.device = CPU

    def draw(self, seeds: Sequence[int], start: StartName | None = None) -> tuple[Problem, Samples, Start]:
        """Ground truth, training samples and start for these seeds."""
        s = self.settings
        problem = draw_problem(seeds, s.d, s.k, self.n, s.noise, s.scaling, self.device)
        data = draw_samples(problem, self.m)
        return problem, data, make_start(start or s.start, problem, data)

    def run(
        self,
        drawn: tuple[Problem, Samples, Start],
        method: Alternation,
        rounds: int | None = None,
        on_divergence: OnDivergence = "most",
    ) -> Trajectory:
        """Run a method from these; a seed that overflows is noted and does not end it, unless most do."""
        problem, data, start = drawn
        fixed = self.samples == "fixed"
        return alternate(
            problem,
            method,
            start,
            rounds or self.settings.rounds,
            data=data if fixed else None,
            m=None if fixed else self.m,
            r=self.settings.r,
            on_divergence=on_divergence,
        )

    def __str__(self) -> str:
        return f"n = {self.n}, m = {self.m}"


def choose_step(
    case: LinearCase,
    kind: Alternation,
    steps: Sequence[float],
    head_step_grid: Sequence[float | None],
    seeds: Sequence[int],
    window: tuple[int, int],
    measure: Measure,
    far: bool = False,
) -> list[Alternation]:
    """A method with each pair of step sizes, the best first, as measured on seeds of its own.

    Best is the least mean over the rounds of ``window`` of the median over seeds of log ``measure``; the step sizes of
    ``kind`` itself do not count. A pair with which any seed overflows or ends farther from the truth than it started is
    left out; only ever what is left is used. None in ``head_step_grid`` is the representation's step for the heads too.

    Args:
        far: choose from a random start, where a seed may go astray with any pair: none is left out, and those with the
            fewest such seeds come first.

    Raises:
        DivergenceError: nothing is left.
    """
    drawn = case.draw(seeds, "random" if far else None)
    found: list[tuple[int, float, int, Alternation]] = []
    for step, size in itertools.product(steps, [None] if kind.head_steps is None else head_step_grid):
        method = replace(kind, step=step, head_step=size)
        try:
            run = case.run(drawn, method, window[1], "record" if far else "most")
        except DivergenceError:
            continue
        away = int(run.went_away.sum())
        if away and not far:
            continue
        values = measure(run)[:, window[0] :].clamp(min=1e-300).log()
        found.append((away, float(values.median(dim=0).values.mean()), len(found), method))
    if not found:
        sizes = [size for size in head_step_grid if size is not None]
        smallest = replace(kind, step=min(steps), head_step=min(sizes, default=None))
        name, value = smaller_step(drawn[0], smallest, drawn[1])
        given = isinstance(case.settings, GridSettings) and case.settings.head_step is not None
        grid = "steps" if name == "step" else name if given else "head_step_grid"
        told = f"{kind.name} diverges at every step size of {list(steps if name == 'step' else sizes)} ({case})"
        if case.m <= case.settings.k:
            raise DivergenceError(f"{told}: with m ≤ k a head fits its samples on any representation; take m > k")
        raise DivergenceError(f"{told}; take a smaller one, such as {grid}={value:.3g}")
    return [method for *_, method in sorted(found, key=lambda each: each[:3])]


def run_best(
    case: LinearCase, drawn: tuple[Problem, Samples, Start], ranked: Sequence[Alternation]
) -> tuple[Alternation, Trajectory]:
    """Run the first of these that does not diverge here: what suits other seeds may be too large for one of these.

    Raises:
        DivergenceError: all of them diverge.
    """
    for method in ranked[:-1]:
        try:
            run = case.run(drawn, method)
            refuse_divergence(run, method, case, drawn)
            return method, run
        except DivergenceError:
            continue
    run = case.run(drawn, ranked[-1])
    refuse_divergence(run, ranked[-1], case, drawn)
    return ranked[-1], run


def common_step(settings: LinearSettings, n: Sequence[int], seeds: Sequence[int], device: torch.device) -> float:
    """The largest step size that Theorem 1 allows for all of these numbers of clients and seeds."""
    s = settings
    return min(
        safe_step(draw_problem(seeds, s.d, s.k, each, 0.0, s.scaling, device), clients_per_round(each, s.r))
        for each in n
    )


def safe_step(problem: Problem, count: int) -> float:
    """The largest step size that Theorem 1 allows for every seed, 1/(4 σ̄_max,*²)."""
    return float(step_limit(subset_extremes(problem, count).largest).min())


def refuse_divergence(
    run: Trajectory, method: Alternation, case: LinearCase, drawn: tuple[Problem, Samples, Start]
) -> None:
    """End an experiment whose representation ends far from where it started in most seeds.

    Raises:
        DivergenceError: naming method, step size and case.
    """
    away = int(run.went_away.sum())
    if 2 * away > len(run.went_away):
        name, value = smaller_step(drawn[0], method, drawn[1])
        raise DivergenceError(
            f"{method.name} diverges at step size {method.step:g}: in {away} of {len(run.went_away)} seeds its "
            f"representation ends more than twice as far from B* as it started ({case}); use a smaller step size, such "
            f"as {name}={value:.3g}"
        )


def refuse_rise(model: SingleModel, step: float, case: LinearCase, problem: Problem) -> None:
    """End an experiment in which FedSGD's training loss more than doubles in most seeds.

    Raises:
        DivergenceError: naming the step size and the case.
    """
    up = int(model.went_up.sum())
    if 2 * up > len(model.w):
        raise DivergenceError(
            f"FedSGD diverges at step size {step:g}: in {up} of {len(model.w)} seeds its training loss ends above "
            f"twice its start's ({case}); use a smaller step size, such as step={usable_step(problem, step):.3g}"
        )


def first_round(distance: torch.Tensor, target: torch.Tensor) -> npt.NDArray[np.int64]:
    """The first round at which each seed's distance is at or below its target; T + 1 where it is not within T rounds.

    Args:
        distance: [S, T + 1].
        target: [S].
    """
    reached = (distance <= target[:, None]).cpu().numpy()
    return np.where(reached.any(axis=1), reached.argmax(axis=1), distance.shape[1])


def show_rounds(first: npt.NDArray[np.int64], rounds: int) -> str:
    """The median over seeds of :func:`first_round`, "> T" where it was not reached by then.

    With an even number of seeds the upper of the two middle ones, so that a median never averages a round with a
    censored one.
    """
    middle = int(np.sort(first)[len(first) // 2])
    return str(middle) if middle <= rounds else f"> {rounds}"
