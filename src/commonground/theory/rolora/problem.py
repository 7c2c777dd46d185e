"""Clients with targets of rank 1 that share a direction: Y_i = X_i a* b_i*ᵀ (RoLoRA, eqs. (5)–(7), Appendix A.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from commonground.errors import ConfigError
from commonground.theory.checks import at_least, positive
from commonground.theory.draws import Device, normal

__all__ = ["Problem", "heterogeneous", "homogeneous", "population_loss"]


@dataclass(frozen=True)
class Problem:
    """What the clients have to learn, and where they start.

    Attributes:
        a_star: [S, d], unit vectors: the direction all clients share.
        b_star: [S, N, d], each client's b_i*; the same for all clients in the homogeneous setting.
        a_start: [S, d], unit vectors: a^0.
        seeds: the S seeds, which also key the inputs drawn later.
    """

    a_star: torch.Tensor
    b_star: torch.Tensor
    a_start: torch.Tensor
    seeds: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        """Where it is computed with."""
        return self.a_star.device

    @property
    def clients(self) -> int:
        """N."""
        return self.b_star.shape[1]

    @property
    def dimension(self) -> int:
        """d, of inputs and outputs alike."""
        return self.a_star.shape[1]

    @property
    def mean_b_star(self) -> torch.Tensor:
        """b̄*, the clients' mean: [S, d]; b* itself where clients are alike."""
        return self.b_star.mean(dim=1)

    @property
    def signal(self) -> torch.Tensor:
        """‖b̄*‖²: [S]."""
        return self.mean_b_star.square().sum(dim=1)

    @property
    def client_variance(self) -> torch.Tensor:
        """γ² of Definition A.13: [S]."""
        return (self.b_star - self.mean_b_star[:, None]).square().sum(dim=2).mean(dim=1)


def homogeneous(
    seeds: Sequence[int],
    clients: int,
    dimension: int,
    delta0: float | None = None,
    norm: float = 1.0,
    device: Device = "cpu",
) -> Problem:
    """Clients with one target (RoLoRA, Section 5.1).

    The paper leaves the law of a* and b* open; ours are uniform directions. Where inputs are Gaussian nothing depends
    on them but δ^0 and ‖b*‖.

    Args:
        seeds: one repetition each.
        clients: N.
        dimension: d.
        delta0: the start's angle distance δ^0 in (0, 1), met exactly; None starts at a uniformly random unit vector,
            for which E[1 − (δ^0)²] = 1/d.
        norm: ‖b*‖.
        device: where everything about the problem is computed.

    Raises:
        ConfigError: d < 2 (no other direction to start from), N < 1, δ^0 outside (0, 1), a norm that is not positive.
    """
    return heterogeneous(seeds, clients, dimension, delta0, norm, gamma=0.0, device=device)


def heterogeneous(
    seeds: Sequence[int],
    clients: int,
    dimension: int,
    delta0: float | None = None,
    norm: float = 1.0,
    gamma: float = 1.0,
    device: Device = "cpu",
) -> Problem:
    """Clients that share a* and differ in b_i* (RoLoRA, Appendix A.5).

    The paper leaves the law of b_i* open; ours are b̄* plus Gaussian deviations, centred over the clients and scaled so
    that Definition A.13's γ is met exactly.

    Args:
        seeds, clients, dimension, delta0, device: see :func:`homogeneous`.
        norm: ‖b̄*‖.
        gamma: γ, the root of the client variance.

    Raises:
        ConfigError: as :func:`homogeneous`; a negative γ, or γ > 0 with a single client.
    """
    _check(clients, dimension, delta0, norm, gamma)
    a_star = _unit(normal(seeds, "rolora-a-star", dimension, device=device))
    start = normal(seeds, "rolora-a-start", dimension, device=device)
    if delta0 is None:
        a_start = _unit(start)
    else:
        across = _unit(start - a_star * (a_star * start).sum(dim=1, keepdim=True))
        across = _unit(across - a_star * (a_star * across).sum(dim=1, keepdim=True))  # once more, for the last digits
        a_start = math.sqrt((1 - delta0) * (1 + delta0)) * a_star + delta0 * across
    b_star = norm * _unit(normal(seeds, "rolora-b-star", dimension, device=device))[:, None].expand(-1, clients, -1)
    if gamma > 0:
        deviation = normal(seeds, "rolora-b-deviations", clients, dimension, device=device)
        deviation = deviation - deviation.mean(dim=1, keepdim=True)
        size = deviation.square().sum(dim=2).mean(dim=1).sqrt()
        b_star = b_star + gamma * deviation / size[:, None, None]
    return Problem(a_star, b_star.contiguous(), a_start, tuple(seeds))


def population_loss(problem: Problem, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Global loss for infinitely many samples, (1/N) Σ ‖a* b_i*ᵀ − a bᵀ‖², literally (Appendix A.5, below eq. (246)).

    It is also E‖xᵀ(a* b_i*ᵀ − a bᵀ)‖², the mean squared error on a new standard Gaussian input.

    Args:
        problem: S of them.
        a, b: [S, d].

    Returns:
        [S].
    """
    product = a[:, :, None] * b[:, None, :]
    total = a.new_zeros(len(problem.seeds))
    for client in range(problem.clients):
        target = problem.a_star[:, :, None] * problem.b_star[:, client, None, :]
        total += (target - product).square().sum(dim=(1, 2))
    return total / problem.clients


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    unit: torch.Tensor = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return unit


def _check(clients: int, dimension: int, delta0: float | None, norm: float, gamma: float) -> None:
    at_least("the number of clients N", clients, 1)
    at_least("the dimension d", dimension, 2, "an angle needs two directions")
    if delta0 is not None and not 0 < delta0 < 1:
        raise ConfigError(f"the initial angle distance delta0 is {delta0:g}; it must lie strictly between 0 and 1")
    positive("the norm of b*", norm)
    if not 0 <= gamma < math.inf:
        raise ConfigError(f"the client deviation gamma is {gamma:g}; it must be at least 0 and finite")
    if gamma > 0 and clients < 2:
        raise ConfigError(f"gamma is {gamma:g} with a single client; clients that differ must be at least 2")
