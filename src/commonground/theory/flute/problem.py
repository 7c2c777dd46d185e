"""The clients' linear regressions: two generators of Φ, samples, and the population case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from commonground.errors import ConfigError
from commonground.keys import torch_stream
from commonground.theory.checks import at_least, positive
from commonground.theory.draws import Device, normal
from commonground.theory.subspace import orthonormal

__all__ = [
    "Generator",
    "LinearProblem",
    "gaussian_models",
    "harmonic_singular_values",
    "models",
    "models_with_singular_values",
    "population_problem",
    "random_start",
    "sample_problem",
]

Generator = Literal["gaussian", "spectrum"]


@dataclass(frozen=True)
class LinearProblem:
    """M linear regressions y = φ_iᵀx + ξ, as the moments of their samples (all that the algorithms need of them).

    With x_1 … x_N client i's inputs, L_i(θ) = (1/N) Σ_j (x_jᵀθ − y_j)² = θᵀΣ_iθ − 2c_iᵀθ + p_i.

    Attributes:
        seeds: S seeds.
        phi: the true models Φ = [φ_1 … φ_M], [S, d, M].
        covariance: Σ_i = (1/N) Σ_j x_j x_jᵀ, [S, M, d, d]; None in the population case, where it is the identity.
        cross: c_i = (1/N) Σ_j y_j x_j, [S, M, d]; φ_i in the population case.
        power: p_i = (1/N) Σ_j y_j², [S, M].
        moment: (1/(MN)) Σ_i Σ_j y_j² x_j x_jᵀ, [S, d, d]: what FedRep's clients send for its start.
        samples: N, or None in the population case.
    """

    seeds: tuple[int, ...]
    phi: torch.Tensor
    covariance: torch.Tensor | None
    cross: torch.Tensor
    power: torch.Tensor
    moment: torch.Tensor
    samples: int | None

    @property
    def device(self) -> torch.device:
        """Where it is computed with."""
        return self.phi.device

    @property
    def dimension(self) -> int:
        """Number of inputs d."""
        return self.phi.shape[1]

    @property
    def clients(self) -> int:
        """Number of clients M."""
        return self.phi.shape[2]

    def check_rank(self, k: int) -> None:
        """Refuse a rank that Φ cannot have.

        Raises:
            ConfigError: k < 1 or k > min(d, M).
        """
        at_least("k", k, 1, "columns of the representation B")
        if k > min(self.dimension, self.clients):
            raise ConfigError(
                f"k is {k}; it must be at most min(d, M) = {min(self.dimension, self.clients)} "
                f"(d = {self.dimension}, M = {self.clients})"
            )

    def residual(self, product: torch.Tensor) -> torch.Tensor:
        """Columns Σ_i θ_i − c_i for the models θ_i in the columns of ``product``: [S, d, M].

        Half the gradient of L_i with respect to its client's model.
        """
        if self.covariance is None:
            return product - self.phi
        applied = (self.covariance * product.mT.unsqueeze(2)).sum(dim=3)  # [S, M, d]
        return (applied - self.cross).mT

    def loss(self, product: torch.Tensor) -> torch.Tensor:
        """Mean over clients of L_i, eq. (2): [S]. Without noise terms in the population case."""
        residual = self.residual(product)  # Σθ − c, so θᵀΣθ − 2cᵀθ + p = θᵀ(Σθ − c) − cᵀθ + p
        quadratic = (product * (residual - self.cross.mT)).sum(dim=1) + self.power
        return quadratic.mean(dim=1)


def gaussian_models(seeds: Sequence[int], d: int, clients: int, device: Device = "cpu") -> torch.Tensor:
    """Φ with independent standard normal columns (§7.1): [S, d, M].

    A client's model does not depend on how many clients there are beside it.

    Raises:
        ConfigError: d < 1 or M < 1.
    """
    _check_sizes(d, clients)
    columns = [normal(seeds, "flute models", d, ids=(client,), device=device) for client in range(clients)]
    return torch.stack(columns, dim=2)


def harmonic_singular_values(d: int, clients: int) -> list[float]:
    """The singular values 2d/(i+1), i = 1 … min(d, M), of App. C.1."""
    _check_sizes(d, clients)
    return [2 * d / (i + 1) for i in range(1, min(d, clients) + 1)]


def models_with_singular_values(
    seeds: Sequence[int],
    d: int,
    clients: int,
    singular_values: Sequence[float] | None = None,
    device: Device = "cpu",
) -> torch.Tensor:
    """Φ = UΛVᵀ with random orthonormal U and V (App. C.1): [S, d, M].

    App. C.1 writes Λ as d × d and V as d × M, but also "d̲ orthonormal columns" (d̲ = min(d, M)); we take d̲ singular
    values, U of d × d̲ and V of M × d̲, which is the same for M ≥ d and also makes sense for M < d. U and V are Q factors
    of Gaussian matrices.

    Args:
        seeds: S seeds.
        d, clients: sizes of Φ.
        singular_values: at most min(d, M) values ≥ 0, in any order; by default 2d/(i+1).
        device: where Φ, and all that follows from it, is computed.

    Raises:
        ConfigError: sizes below 1, too many singular values, or a negative one.
    """
    _check_sizes(d, clients)
    values = harmonic_singular_values(d, clients) if singular_values is None else list(singular_values)
    if not 1 <= len(values) <= min(d, clients):
        raise ConfigError(f"{len(values)} singular values given; a {d} × {clients} matrix has 1 to {min(d, clients)}")
    for value in values:
        at_least("a singular value", value, 0)
    left = orthonormal(normal(seeds, "flute left basis", d, len(values), device=device))
    right = orthonormal(normal(seeds, "flute right basis", clients, len(values), device=device))
    return (left * torch.tensor(values, dtype=torch.float64, device=device)) @ right.mT


def models(generator: Generator, seeds: Sequence[int], d: int, clients: int, device: Device = "cpu") -> torch.Tensor:
    """Φ of §7.1 (``gaussian``) or of App. C.1 (``spectrum``): [S, d, M]."""
    if generator == "gaussian":
        return gaussian_models(seeds, d, clients, device)
    return models_with_singular_values(seeds, d, clients, device=device)


def population_problem(seeds: Sequence[int], phi: torch.Tensor) -> LinearProblem:
    """The case of known Φ (eq. (3)): infinitely many samples without noise.

    Args:
        seeds: S seeds, for messages and starts.
        phi: [S, d, M].
    """
    power = phi.square().sum(dim=1)
    # E[(φᵀx)² xxᵀ] = 2φφᵀ + ‖φ‖² I
    identity = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
    moment = 2 * phi @ phi.mT / phi.shape[2] + power.mean(dim=1)[:, None, None] * identity
    return LinearProblem(tuple(seeds), phi, None, phi.mT, power, moment, None)


def sample_problem(seeds: Sequence[int], phi: torch.Tensor, samples: int, noise_variance: float = 0.3) -> LinearProblem:
    """N samples per client, x ~ N(0, I), y = φ_iᵀx + ξ, ξ ~ N(0, noise_variance) (§7.1, App. C.1).

    A client's samples do not depend on how many clients there are beside it. They are drawn once and used in every
    round, as Algorithm 1's D_i are.

    Args:
        seeds: S seeds.
        phi: [S, d, M].
        samples: N.
        noise_variance: σ²; App. C.1 says 0.3 (we read N(0, 0.3) as mean and variance).

    Raises:
        ConfigError: N < 1 or a negative variance.
    """
    at_least("N", samples, 1, "samples per client")
    at_least("noise_variance", noise_variance, 0)
    d, clients = phi.shape[1:]
    covariance = phi.new_empty(len(seeds), clients, d, d)
    cross = phi.new_empty(len(seeds), clients, d)
    power = phi.new_empty(len(seeds), clients)
    moment = phi.new_empty(len(seeds), d, d)
    for s, seed in enumerate(seeds):  # one seed at a time: its samples are dropped once their moments are known
        x = torch.empty(clients, samples, d, dtype=torch.float64, device="cpu")
        noise = torch.empty(clients, samples, dtype=torch.float64, device="cpu")
        for i in range(clients):
            stream = torch_stream(seed, "flute samples", i)
            x[i].normal_(generator=stream)
            noise[i].normal_(generator=stream)
        x, noise = x.to(phi.device), noise.to(phi.device)
        y = (x @ phi[s].T.unsqueeze(2)).squeeze(2) + noise_variance**0.5 * noise
        covariance[s] = x.mT @ x / samples
        cross[s] = (x.mT @ y.unsqueeze(2)).squeeze(2) / samples
        power[s] = y.square().mean(dim=1)
        weighted = (x * y.unsqueeze(2)).reshape(-1, d)
        moment[s] = weighted.T @ weighted / (clients * samples)
    return LinearProblem(tuple(seeds), phi, covariance, cross, power, moment, samples)


def random_start(problem: LinearProblem, k: int, alpha: float, *, draw: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """B⁰ and W⁰ with independent N(0, α²) entries (Algorithm 1, line 2): [S, d, k] and [S, k, M].

    Args:
        problem: gives the sizes and seeds.
        k: rank.
        alpha: α > 0; Theorem 5.1 asks for α ≤ 1/(10d).
        draw: another number gives an independent start.

    Raises:
        ConfigError: k is impossible, or α is not positive and finite.
    """
    problem.check_rank(k)
    positive("alpha", alpha, "standard deviation of the random start")
    body = alpha * normal(problem.seeds, "flute start B", problem.dimension, k, ids=(draw,), device=problem.device)
    heads = alpha * normal(problem.seeds, "flute start W", k, problem.clients, ids=(draw,), device=problem.device)
    return body, heads


def _check_sizes(d: int, clients: int) -> None:
    at_least("d", d, 1, "inputs")
    at_least("M", clients, 1, "clients")
