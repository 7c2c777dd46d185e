"""Training and test error of a client (Section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from commonground.theory.checks import at_least
from commonground.theory.draws import Device, normal
from commonground.theory.features import network
from commonground.theory.features.problem import FeatureModel, Problem, patches

__all__ = ["directions", "population_test_error", "sampled_test_error", "training_error"]


def training_error(margin: torch.Tensor) -> torch.Tensor:
    """Share of a client's training samples with yF < 0: [..., N, n] to [..., N]."""
    return (margin < 0).double().mean(-1)


def directions(seeds: Sequence[int], filters: int, count: int, device: Device = "cpu") -> torch.Tensor:
    """Uniform unit vectors for :func:`population_test_error`: [S, count, m]."""
    at_least("directions", count, 1, "unit vectors per test error")
    drawn = normal(seeds, "test directions", count, filters, device=device)
    units: torch.Tensor = drawn / drawn.norm(dim=-1, keepdim=True)
    return units


def population_test_error(
    model: FeatureModel, gamma: torch.Tensor, noise_gram: torch.Tensor, units: torch.Tensor
) -> torch.Tensor:
    """P{yF(W, x) < 0} for fresh data of every client, analytic but for the direction of the noise.

    A fresh sample of client i has yF = s_i + T with s_i = Σ_k s_{i,k} Σ_r Γ_{r,k}³ and T = Σ_r g_r³, where
    g = y(⟨w_r, ξ⟩)_r is Gaussian with covariance σ_ξ² WHWᵀ. Write g = σ_ξ R L u with LLᵀ = WHWᵀ, u uniform on the unit
    sphere, R² ~ χ²_m. T is symmetric, so P(s + T < 0) = P(|T| > s)/2 for s ≥ 0 and 1 − P(|T| > −s)/2 for s < 0; given
    u, the probability that |T| = (σ_ξR)³|Σ_r (Lu)_r³| exceeds |s| is a tail of the χ² distribution. Only u is sampled:
    where s = 0 exactly 1/2 comes out, and rare errors are found without being drawn. With one filter it is exact.

    Args:
        model: of the data.
        gamma: [S, A, m, K], A models: 1 for all clients or N, one each.
        noise_gram: WHWᵀ, [S, A, m, m].
        units: [S, U, m], see :func:`directions`.

    Returns:
        [S, N].
    """
    s = (gamma.pow(3).sum(2) * model.signals(gamma.device)).sum(-1)  # [S, N]
    values, vectors = torch.linalg.eigh(noise_gram)
    root = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT  # the symmetric root: it is unique
    cubes = (units.unsqueeze(1) @ root).pow(3).sum(-1).abs()  # [S, A, U]
    radius = (s.abs().unsqueeze(-1) / cubes).pow(1 / 3) / model.sigma_xi
    half = radius.square() / 2  # 0/0 where neither signal nor noise is left: no error then, as 0 < 0 is false
    tail = torch.special.gammaincc(torch.full_like(half, model.m / 2), half.nan_to_num(posinf=1e300))
    tail = torch.where(cubes.expand_as(half) > 0, tail, torch.zeros_like(tail)).mean(-1) / 2
    return torch.where(s >= 0, tail, 1 - tail)


def sampled_test_error(problem: Problem, weights: torch.Tensor, samples: int) -> torch.Tensor:
    """The same, counted on fresh samples pushed through the network: a check of :func:`population_test_error`.

    Args:
        problem: gives features and model; samples are drawn anew per seed.
        weights: [S, A, m, d].
        samples: per client.

    Returns:
        [S, N].
    """
    model = problem.model
    sizes = (model.N, samples)
    y = torch.where(normal(problem.seeds, "fresh labels", *sizes, device=problem.device) < 0, -1.0, 1.0).double()
    xi = model.sigma_xi * normal(problem.seeds, "fresh noise", *sizes, model.d, device=problem.device)
    v = problem.features.unsqueeze(1)
    xi = xi - (xi @ v) @ v.mT
    return training_error(network.margin(weights, patches(problem, y, xi), y))
