"""Algorithm 2 of RoLoRA's paper: exact b on every client, average, one gradient step on a, normalise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from commonground.errors import ConfigError, DivergenceError
from commonground.theory.checks import at_least, positive
from commonground.theory.draws import normal
from commonground.theory.rolora.problem import Problem

__all__ = ["Draw", "Trace", "angle_distance", "exact_b", "gradient_a", "rolora", "rolora_steps"]

Draw = Literal["step", "round", "fixed"]
"""When clients draw samples: anew for each updating step, anew per round (b and a see the same), or once for all.

"Let m be the number of samples for each updating step" (Lemma 5.3) and a proof that takes E over the inputs with b̄
held fixed (eq. (48)) ask for ``"step"``.
"""


@dataclass(frozen=True)
class Trace:
    """How a run went.

    Attributes:
        delta: [S, T+1], δ^0 … δ^T.
        error: [S, T+1], ‖a^t (b^{t+1})ᵀ − a* b̄*ᵀ‖ (Theorem 5.4's second claim); at t = 0 it is that of FFA-LoRA. The
            population loss is γ² + its square.
        a: [S, d], a^T.
        b: [S, d], b^{T+1}.
    """

    delta: torch.Tensor
    error: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor


def angle_distance(a: torch.Tensor, a_star: torch.Tensor) -> torch.Tensor:
    """|sin θ(a, a*)| = ‖(I − a* a*ᵀ) a‖ of unit vectors [..., d] (Definition 5.2), exact to rounding near 0."""
    across = a - a_star * (a * a_star).sum(dim=-1, keepdim=True)
    distance: torch.Tensor = torch.linalg.vector_norm(across, dim=-1)
    return distance


def exact_b(inputs: torch.Tensor, a: torch.Tensor, problem: Problem) -> torch.Tensor:
    """Each client's least-squares b_i (line 5, eq. (14)).

    Args:
        inputs: [S, N, m, d], X_i.
        a: [S, d].
        problem: gives Y_i = X_i a* b_i*ᵀ.

    Returns:
        [S, N, d]; the minimum-norm solution 0 where X_i a = 0 (which has probability 0).
    """
    return _scales(inputs @ a[:, None, :, None], _targets(inputs, problem))[:, :, 0, None] * problem.b_star


def gradient_a(inputs: torch.Tensor, a: torch.Tensor, b: torch.Tensor, problem: Problem) -> torch.Tensor:
    """(1/N) Σ ∇_a l_i(a, b) with its factor 2/m (line 9, eq. (47)).

    Args:
        inputs: [S, N, m, d], X_i.
        a, b: [S, d].
        problem: gives Y_i = X_i a* b_i*ᵀ.

    Returns:
        [S, d].
    """
    return _gradient(inputs, a[:, :, None], b[:, :, None], problem)[:, :, 0]


def rolora(problem: Problem, rounds: int, step: float, samples: int | None = None, draw: Draw = "step") -> Trace:
    """Algorithm 2.

    Args:
        problem: S of them.
        rounds: T, its iterations (each is two communication rounds of Algorithm 1).
        step: η.
        samples: m per client and updating step, from a standard Gaussian; None for infinitely many, where every
            expectation is exact (the setting of Appendix A.5).
        draw: see :data:`Draw`.

    Returns:
        What happened, per seed. An iteration can oscillate or stand still, but not grow: a is normalised.

    Raises:
        ConfigError: T < 0, m < 1, a step size that is not positive, an unknown ``draw``.
        DivergenceError: a step too large for floating point, or of length 0, so that it cannot be normalised.
    """
    trace = rolora_steps(problem, rounds, [step], samples, draw)
    return Trace(trace.delta[:, 0], trace.error[:, 0], trace.a[:, 0], trace.b[:, 0])


def rolora_steps(
    problem: Problem,
    rounds: int,
    steps: Sequence[float],
    samples: int | None = None,
    draw: Draw = "step",
    *,
    bound: float | None = None,
) -> Trace:
    """:func:`rolora` for several step sizes side by side, on the same samples.

    Args:
        problem, rounds, steps, samples, draw: as there.
        bound: c: no step is larger than c/‖b̄‖², b̄ being the factor that is frozen while a is stepped. With infinitely
            many samples a bounded step gives tan θ' = tan θ · |1 − 2c| / (1 + 2c tan² θ), which contracts from every
            start for every c < 1 (put η = c/(‖b*‖² cos² θ) into :mod:`~commonground.theory.rolora.angle_map`).

    Returns:
        As :func:`rolora`, with an axis of step sizes after that of seeds.
    """
    at_least("the number of rounds T", rounds, 0)
    if samples is not None:
        at_least("the number of samples m", samples, 1, "per client and updating step")
    if draw not in get_args(Draw):
        raise ConfigError(f"samples cannot be drawn per {draw!r}; known are {', '.join(get_args(Draw))}")
    for step in steps:
        positive("the step size eta", step)
    if bound is not None:
        positive("the bound of the step", bound)
    size = torch.tensor(list(steps), dtype=torch.float64, device=problem.device)
    a = problem.a_start[:, :, None].repeat(1, 1, len(steps))  # [S, d, C]: the C step sizes come last
    delta, error = [], []
    for t in range(rounds + 1):
        inputs = _inputs(problem, samples, draw, t, 0)
        b = _mean_b(inputs, a, problem)
        delta.append(angle_distance(a.mT, problem.a_star[:, None]))
        error.append(_error(a, b, delta[-1], problem))
        if t == rounds:
            break
        if draw == "step":
            inputs = _inputs(problem, samples, draw, t, 1)
        taken = size if bound is None else torch.minimum(size, bound / b.square().sum(dim=1, keepdim=True))
        a = _normalised(a - taken * _gradient(inputs, a, b, problem), t + 1, steps, problem.seeds)
    return Trace(torch.stack(delta, dim=2), torch.stack(error, dim=2), a.mT, b.mT)


def _inputs(problem: Problem, samples: int | None, draw: Draw, t: int, part: int) -> torch.Tensor | None:
    if samples is None:
        return None
    ids = {"step": (t, part), "round": (t, 0), "fixed": (0, 0)}[draw]
    return normal(
        problem.seeds, "rolora-inputs", problem.clients, samples, problem.dimension, ids=ids, device=problem.device
    )


def _targets(inputs: torch.Tensor, problem: Problem) -> torch.Tensor:
    """X_i a*: [S, N, m, 1]."""
    return inputs @ problem.a_star[:, None, :, None]


def _scales(along: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """s_i of eq. (184), with b_i = s_i b_i*: [S, N, C] from X_i a [S, N, m, C] and X_i a* [S, N, m, 1]."""
    power = along.square().sum(dim=2)
    return torch.where(power > 0, (along * targets).sum(dim=2) / power, torch.zeros_like(power))


def _mean_b(inputs: torch.Tensor | None, a: torch.Tensor, problem: Problem) -> torch.Tensor:
    """b̄ [S, d, C] for a [S, d, C]."""
    if inputs is None:  # b̄ = b̄* a*ᵀa, eq. (250) (which lacks its 1/N)
        return problem.mean_b_star[:, :, None] * (problem.a_star[:, None, :] @ a)
    scales = _scales(inputs @ a[:, None], _targets(inputs, problem))
    return problem.b_star.mT @ scales / problem.clients


def _gradient(inputs: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, problem: Problem) -> torch.Tensor:
    """The mean gradient [S, d, C] for a and b [S, d, C]."""
    power = b.square().sum(dim=1, keepdim=True)
    if inputs is None:  # eqs. (49), (252)
        overlap = problem.mean_b_star[:, None, :] @ b
        return 2 * (a * power - problem.a_star[:, :, None] * overlap)
    overlap = problem.b_star @ b  # b_i*·b̄: [S, N, C]
    residual = (inputs @ a[:, None]) * power[:, None] - _targets(inputs, problem) * overlap[:, :, None]
    seeds, clients, samples, dimension = inputs.shape
    rows = inputs.reshape(seeds, clients * samples, dimension)
    return 2 / (clients * samples) * (rows.mT @ residual.reshape(seeds, clients * samples, -1))


def _error(a: torch.Tensor, b: torch.Tensor, delta: torch.Tensor, problem: Problem) -> torch.Tensor:
    # a bᵀ − a* b̄*ᵀ = a(b − g)ᵀ − (I − aaᵀ)a* b̄*ᵀ with g = (aᵀa*) b̄* (eq. (67)): orthogonal, so Pythagoras is exact
    # and keeps its digits where both products agree.
    goal = problem.mean_b_star[:, :, None] * (problem.a_star[:, None, :] @ a)
    return ((b - goal).square().sum(dim=1) + delta.square() * problem.signal[:, None]).sqrt()


def _normalised(a: torch.Tensor, round: int, steps: Sequence[float], seeds: Sequence[int]) -> torch.Tensor:
    length = torch.linalg.vector_norm(a, dim=1, keepdim=True)
    good = torch.isfinite(length) & (length > 0)
    if not bool(good.all()):
        seed, _, which = (~good).nonzero()[0].tolist()
        raise DivergenceError(
            f"RoLoRA diverges: in round {round} the step of a has length {float(length[seed, 0, which]):g} and cannot "
            f"be normalised (seed {seeds[seed]}, step size {steps[which]:g}); use a smaller step size"
        )
    unit: torch.Tensor = a / length
    return unit
