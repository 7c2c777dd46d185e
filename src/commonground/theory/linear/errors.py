"""Errors of fitted models on noise-free test data, measured and as formulas."""

from __future__ import annotations

import math

import torch

from commonground.theory.checks import at_least, between
from commonground.theory.linear.least_squares import least_squares
from commonground.theory.linear.problem import Problem, draw_clients, draw_samples
from commonground.theory.subspace import orthonormal

__all__ = ["expected_error", "new_client_error", "outside", "training_floor", "value_floor"]


def expected_error(unknowns: int, m: int, noise: float, signal: float = 0.0, outside: float = 0.0) -> float:
    """Mean of ‖θ̂ − θ‖² for (minimum-norm) least squares on m samples x ~ N(0, I).

    The model has p = ``unknowns`` weights on an orthonormal basis; θ has squared length ``signal`` within the basis and
    ``outside`` beyond it. What lies outside is independent of the features and acts as noise of that variance on top
    of σ², so with s = σ² + outside

    - m > p + 1: outside + s · p/(m − p − 1)
    - m < p − 1: outside + signal · (1 − m/p) + s · m/(p − m − 1)
    - otherwise the mean is infinite (unless s = 0): look at medians there.

    p = d, outside = 0 is Local Only; p = k is a new client with a learned representation; half of it with outside = 0
    is the floor of the function value, :func:`value_floor`.

    Returns:
        The mean, ``math.inf`` where there is none.
    """
    at_least("unknowns", unknowns, 1)
    at_least("m", m, 1, "samples")
    between("noise", noise, 0, math.inf)
    spread = noise + outside
    missed = signal * max(1 - m / unknowns, 0.0)
    if spread == 0:
        return missed
    if abs(m - unknowns) <= 1:
        return math.inf
    fewer, more = sorted((m, unknowns))
    return outside + missed + spread * fewer / (more - fewer - 1)


def value_floor(k: int, m: int, noise: float) -> float:
    """σ²k/(2(m − k − 1)): the function value (4) that remains with the true representation.

    Heads are fitted by least squares to m noisy samples, test samples are free of noise and Gaussian, so that
    E‖ŵ_i − w_i*‖² = σ² E tr (B*ᵀX_iᵀX_iB*)⁻¹ = σ²k/(m − k − 1), of which the function value is a half; infinite for
    m ≤ k + 1. A representation fitted to finitely many clients adds its own part; the samples a head was trained on
    show less (:func:`training_floor`).
    """
    return expected_error(k, m, noise) / 2 if m >= k else math.inf


def training_floor(k: int, m: int, noise: float) -> float:
    """σ²(m − k)/(2m): the function value (9) on the training samples, true representation and fitted heads (m ≥ k)."""
    at_least("m", m, 1, "samples")
    return noise * max(m - k, 0) / (2 * m)


def outside(B: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """‖(I − BBᵀ) θ_i‖²: what a representation cannot express.

    Args:
        B: [S, d, k], orthonormal.
        theta: [S, c, d].

    Returns:
        [S, c].
    """
    return (theta - theta @ B @ B.mT).square().sum(-1)


def new_client_error(
    problem: Problem, B: torch.Tensor | None, m: int, clients: int, ids: tuple[int, ...] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared error ‖θ̂ − θ‖² of new clients that fit a head to m samples on a given representation.

    The error is the expectation over noise-free test samples x ~ N(0, I). Equal arguments give equal clients and
    samples whatever the representation, so methods are compared on the same ones.

    Args:
        problem: whose representation the new clients share.
        B: [S, d, k], a learned representation (any basis), or None for Local Only.
        m: samples of a new client.
        clients: number of new clients per seed.
        ids: what the draw is keyed by besides.

    Returns:
        (errors [S, clients], what lies outside the representation [S, clients]).
    """
    new = draw_clients(problem, clients, (m, *ids))
    samples = draw_samples(new, m, "new clients", (m, *ids))
    theta = new.theta
    if B is None:
        estimate = least_squares(samples.x, samples.y)
        return (estimate - theta).square().sum(-1), theta.new_zeros(theta.shape[:2])
    basis = orthonormal(B)
    estimate = least_squares(samples.x @ basis[:, None], samples.y) @ basis.mT
    return (estimate - theta).square().sum(-1), outside(basis, theta)
