"""Multi-task linear regression with a shared representation (Collins et al. 2021, Section 4), and samples of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from commonground.errors import ConfigError
from commonground.theory.checks import at_least, between, whole
from commonground.theory.draws import Device, normal, permutations
from commonground.theory.subspace import orthonormal

__all__ = [
    "Problem",
    "Samples",
    "Scaling",
    "check_dimensions",
    "check_samples",
    "clients_per_round",
    "draw_clients",
    "draw_problem",
    "draw_samples",
    "participants",
]

Scaling = Literal["rows", "appendix"]


@dataclass(frozen=True)
class Problem:
    """Ground truth: y = ⟨B* w_i*, x⟩ + noise for client i, with x ~ N(0, I_d).

    Attributes:
        seeds: S of them, the first axis of every tensor.
        B_star: [S, d, k], orthonormal columns.
        W_star: [S, n, k], a row per client.
        noise: variance of the labels' Gaussian noise.
    """

    seeds: tuple[int, ...]
    B_star: torch.Tensor
    W_star: torch.Tensor
    noise: float

    @property
    def device(self) -> torch.device:
        """Where it is computed with."""
        return self.B_star.device

    @property
    def d(self) -> int:
        """Dimension of the inputs."""
        return self.B_star.shape[1]

    @property
    def k(self) -> int:
        """Dimension of the representation."""
        return self.B_star.shape[2]

    @property
    def n(self) -> int:
        """Number of clients."""
        return self.W_star.shape[1]

    @property
    def theta(self) -> torch.Tensor:
        """The clients' regressors B* w_i*: [S, n, d]."""
        return self.W_star @ self.B_star.mT


@dataclass(frozen=True)
class Samples:
    """Labelled samples of c clients.

    Attributes:
        x: [S, c, m, d].
        y: [S, c, m].
    """

    x: torch.Tensor
    y: torch.Tensor

    @property
    def m(self) -> int:
        """Samples per client."""
        return self.x.shape[2]

    def of(self, clients: torch.Tensor) -> Samples:
        """The samples of these clients: ``clients`` is [S, c'], int64."""
        seeds = torch.arange(len(clients), device=clients.device)[:, None]
        return Samples(self.x[seeds, clients], self.y[seeds, clients])


def check_samples(problem: Problem, data: Samples) -> None:
    """Refuse samples of a problem with other seeds, clients or dimensions.

    Raises:
        ConfigError: says what they are of.
    """
    (S, clients, _, d), wanted = data.x.shape, (len(problem.seeds), problem.n, problem.d)
    if (S, clients, d) != wanted:
        raise ConfigError(
            f"the samples are of {S} seeds, n = {clients} clients and d = {d}, and the problem has {wanted[0]} seeds, "
            f"n = {wanted[1]} and d = {wanted[2]}"
        )


def draw_problem(
    seeds: Sequence[int],
    d: int,
    k: int,
    n: int,
    noise: float = 1e-3,
    scaling: Scaling = "rows",
    device: Device = "cpu",
) -> Problem:
    """Draw a ground truth per seed.

    B* is the Q of a Gaussian d×k matrix (Appendix A.1). For W* the paper says two things. Assumption 3 asks for rows of
    norm √k, and every statement of Section 4 rests on it: ``rows``, the default, normalises the rows of a Gaussian
    matrix so ("sampling and normalizing Gaussian matrices", Section 5.1). Appendix A.1 read literally takes √k times
    the Q of an n×k matrix: ``appendix``. Its rows have norm k/√n in the mean, so the signal ‖θ_i‖² = k²/n vanishes
    beside the noise of 1e-3 as clients are added (for k = 2, n = 1000: 0.004), σ̄ of Assumption 2 falls like √(k/n), and
    figures over n would compare problems of different difficulty. It is there for whoever wants to see that.

    Args:
        seeds: a ground truth for each.
        d, k, n: dimension of inputs, of the representation, number of clients; k ≤ min(d, n).
        noise: variance of the label noise; 1e-3 in Section 5.1, 0 in the theory.
        scaling: of W*.
        device: where everything about the problem is computed; it is drawn the same for all.

    Raises:
        ConfigError: dimensions that make no sense, or a negative noise variance.
    """
    check_dimensions(d, k, n, noise)
    if scaling not in ("rows", "appendix"):
        raise ConfigError(f"scaling is '{scaling}'; known are rows (Assumption 3) and appendix (A.1 read literally)")
    B_star = orthonormal(normal(seeds, "linear B*", d, k, device=device))
    W_star = normal(seeds, "linear W*", n, k, device=device)
    W_star = _rows(W_star) if scaling == "rows" else k**0.5 * orthonormal(W_star)
    return Problem(tuple(seeds), B_star, W_star, float(noise))


def check_dimensions(d: int, k: int, n: int, noise: float = 0.0) -> None:
    """Refuse dimensions that make no sense.

    Raises:
        ConfigError: d, k or n below 1, k > min(d, n), or a negative noise variance.
    """
    whole("d", d, 1, "dimension of the inputs")
    whole("n", n, 1, "number of clients")
    whole("k", k, 1, "dimension of the representation")
    if k > min(d, n):
        raise ConfigError(
            f"k is {k}; it must not exceed min(d, n) = min({d}, {n}), the dimensions that n heads can span"
        )
    between("noise", noise, 0, 1e6, "variance of the label noise")


def draw_samples(
    problem: Problem,
    m: int,
    purpose: str = "training",
    ids: tuple[int, ...] = (),
    clients: torch.Tensor | None = None,
) -> Samples:
    """Draw m samples per client: x ~ N(0, I_d), y ~ N(⟨θ_i, x⟩, noise) (Section 5.1).

    Args:
        problem: whose clients.
        m: samples per client.
        purpose, ids: what the draw is keyed by besides the seed, for example the round.
        clients: [S, c], whose samples; None for all clients.

    Raises:
        ConfigError: m < 1.
    """
    whole("m", m, 1, "samples per client")
    theta = problem.theta
    if clients is not None:
        theta = theta[torch.arange(len(clients), device=clients.device)[:, None], clients]
    count = theta.shape[1]
    x = normal(problem.seeds, f"linear x {purpose}", count, m, problem.d, ids=ids, device=problem.device)
    y = (x @ theta[..., None])[..., 0]
    if problem.noise:
        noise = normal(problem.seeds, f"linear noise {purpose}", count, m, ids=ids, device=problem.device)
        y = y + problem.noise**0.5 * noise
    return Samples(x, y)


def draw_clients(problem: Problem, count: int, ids: tuple[int, ...] = ()) -> Problem:
    """The same representation with ``count`` new clients, whose heads are as long as the old ones in the mean."""
    at_least("new_clients", count, 1, "number of new clients")
    rows = _rows(normal(problem.seeds, "linear new W*", count, problem.k, ids=ids, device=problem.device))
    length = problem.W_star.square().sum(-1).mean(1).sqrt()[:, None, None]
    return Problem(problem.seeds, problem.B_star, rows * length / problem.k**0.5, problem.noise)


def clients_per_round(n: int, r: float) -> int:
    """rn, the number of clients in a round, rounded to the nearest whole number where it is none.

    Raises:
        ConfigError: r lies outside (0, 1], or rn < 1.
    """
    if not 0 < r <= 1:
        raise ConfigError(f"r is {r:g}; the participation rate must lie in (0, 1]")
    if r * n < 1 - 1e-9:
        raise ConfigError(f"r·n is {r:g}·{n} = {r * n:g}; at least 1 client must take part in a round")
    return int(r * n + 0.5)


def participants(problem: Problem, count: int, round: int) -> torch.Tensor | None:
    """The clients of a round, drawn without replacement, ascending: [S, count]; None stands for all of them."""
    if count == problem.n:
        return None
    order = permutations(problem.seeds, "linear participants", problem.n, ids=(round,), device=problem.device)
    return order[:, :count].sort(dim=1).values


def _rows(gaussian: torch.Tensor) -> torch.Tensor:
    """Rows of norm √k."""
    k = gaussian.shape[-1]
    rows: torch.Tensor = gaussian * (k**0.5 / gaussian.norm(dim=-1, keepdim=True))
    return rows
