"""The data model of Bao, Crawshaw, Liu (2024), Definition 3.1: K orthonormal features, of which K0 confound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from commonground.errors import ConfigError
from commonground.theory.checks import at_least, between, positive, whole
from commonground.theory.draws import Device, normal
from commonground.theory.subspace import orthonormal

__all__ = ["FeatureModel", "Problem", "beta_limit", "draw_problem", "patches", "rho_for_gap"]


@dataclass(frozen=True)
class FeatureModel:
    """Dimensions and scales of data and start (paper, Definition 3.1 and Section 3.3).

    Client i holds feature k = i mod K, so that every feature has N/K clients, as the paper assumes (Definition 3.1
    draws the feature; the analysis fixes |C_k| = N/K). Features 0, …, K0−1 confound; clients that hold one of them are
    called confounding clients, the others normal ones.

    Attributes:
        d: dimension of a patch; the noise needs a direction beside the K features.
        K: number of features.
        K0: number of confounding features; a sample has P = K0 + 2 patches.
        N: number of clients, a multiple of K.
        n: training samples per client.
        m: filters (hidden neurons).
        alpha: scale of the feature patch.
        rho: scale of the feature noise in confounding clients (of every confounding feature, the own one included).
        beta: scale of the feature noise in normal clients (K0 patches, all of the own feature).
        sigma_xi: standard deviation of the noise patch, per coordinate.
        sigma_0: standard deviation of the starting weights, per coordinate.

    Raises:
        ConfigError: the dimensions make no sense.
    """

    d: int
    K: int
    K0: int
    N: int
    n: int
    m: int
    alpha: float
    rho: float
    beta: float
    sigma_xi: float
    sigma_0: float

    def __post_init__(self) -> None:
        whole("K", self.K, 1, "features")
        whole("K0", self.K0, 0, "confounding features")
        between("K0", self.K0, 0, self.K, f"confounding ones of the K = {self.K} features")
        whole("d", self.d, self.K + 1, f"K = {self.K} features and a direction for the noise")
        whole("N", self.N, self.K, "every feature has N/K clients")
        if self.N % self.K:
            raise ConfigError(f"N is {self.N}, no multiple of K = {self.K}; every feature has N/K clients")
        whole("n", self.n, 1, "samples per client")
        whole("m", self.m, 1, "filters")
        positive("alpha", self.alpha)
        between("rho", self.rho, 0, math.inf)
        between("beta", self.beta, 0, math.inf)
        positive("sigma_xi", self.sigma_xi)
        positive("sigma_0", self.sigma_0)

    @property
    def gap(self) -> float:
        """α³ − K0ρ³, K times the averaged gradient's signal of a confounding feature."""
        return self.alpha**3 - self.K0 * self.rho**3

    @property
    def held(self) -> torch.Tensor:
        """The feature of every client: [N], int64, on the CPU (where it can index a tensor on any device)."""
        return torch.arange(self.N, device="cpu") % self.K

    @property
    def confounded(self) -> torch.Tensor:
        """Which clients hold a confounding feature: [N], bool, on the CPU like :attr:`held`."""
        return self.held < self.K0

    def signals(self, device: Device = "cpu") -> torch.Tensor:
        """[N, K]: by how much y·F of a sample of client i grows per Σ_r Γ_{r,k}³.

        α³ for the feature held, −ρ³ for every confounding feature in a confounding client, −K0β³ for the own feature in
        a normal one. The same numbers drive the update rules (B.1), (B.2), (C.1)–(C.3).
        """
        held = torch.nn.functional.one_hot(self.held, self.K).double()
        noise = torch.zeros(self.N, self.K, dtype=torch.float64, device="cpu")
        noise[self.confounded, : self.K0] = self.rho**3
        noise[~self.confounded] = self.K0 * self.beta**3 * held[~self.confounded]
        return (self.alpha**3 * held - noise).to(device)


def rho_for_gap(alpha: float, K0: int, gap: float) -> float:
    """ρ with α³ − K0ρ³ = gap (Parameter 1 sets the gap to 1/poly(d); its appendix, before (B.29), to Θ(K/d)).

    Raises:
        ConfigError: no feature confounds, or the gap is not in [0, α³].
    """
    at_least("K0", K0, 1, "rho follows from the gap")
    between("gap", gap, 0, alpha**3, "between nothing and α³")
    return math.cbrt((alpha**3 - gap) / K0)


def beta_limit(alpha: float, K0: int) -> float:
    """The largest β of Parameter 1: β³ = α³/(2K0).

    Raises:
        ConfigError: no feature confounds.
    """
    at_least("K0", K0, 1, "it is the number of feature noise patches")
    return alpha / math.cbrt(2 * K0)


@dataclass(frozen=True)
class Problem:
    """Drawn data and start, one per seed.

    Attributes:
        model: what they were drawn from.
        seeds: S seeds.
        features: [S, d, K], orthonormal columns v_k.
        noise: [S, N, n, d], the patches ξ_ij, orthogonal to every feature.
        labels: [S, N, n], ±1.
        start: [S, m, d], the weights W⁽⁰⁾ all clients share.
    """

    model: FeatureModel
    seeds: tuple[int, ...]
    features: torch.Tensor
    noise: torch.Tensor
    labels: torch.Tensor
    start: torch.Tensor

    @property
    def device(self) -> torch.device:
        """Where it is computed with."""
        return self.features.device


def draw_problem(model: FeatureModel, seeds: Sequence[int], device: Device = "cpu") -> Problem:
    """Draw features (uniformly among orthonormal systems; the paper leaves them open), labels, noise and start."""
    sizes = (model.N, model.n)
    v = orthonormal(normal(seeds, "features", model.d, model.K, device=device))
    xi = model.sigma_xi * normal(seeds, "noise patches", *sizes, model.d, device=device)
    flat = xi.flatten(1, 2)
    xi = (flat - flat @ v @ v.mT).view_as(xi)
    labels = torch.where(normal(seeds, "labels", *sizes, device=device) < 0, -1.0, 1.0).double()
    start = model.sigma_0 * normal(seeds, "filters", model.m, model.d, device=device)
    return Problem(model, tuple(seeds), v, xi, labels, start)


def patches(problem: Problem, labels: torch.Tensor | None = None, noise: torch.Tensor | None = None) -> torch.Tensor:
    """The inputs as Definition 3.1 writes them.

    Args:
        problem: model and features.
        labels: [S, N, n'], by default the training labels.
        noise: [S, N, n', d], by default the training noise.

    Returns:
        [S, N, n', P, d]: patch 0 is αy·v_i, patches 1 to K0 are feature noise, the last is ξ.
    """
    model = problem.model
    y = problem.labels if labels is None else labels
    xi = problem.noise if noise is None else noise
    v = problem.features.mT  # [S, K, d]
    own = v[:, model.held]  # [S, N, d]
    x = y.new_empty(*y.shape, model.K0 + 2, model.d)
    x[..., 0, :] = model.alpha * y[..., None] * own[:, :, None]
    confounded = model.confounded.to(x.device)
    for p in range(model.K0):
        noisy = torch.where(confounded[:, None], model.rho * v[:, p, None], model.beta * own)
        x[..., p + 1, :] = -y[..., None] * noisy[:, :, None]
    x[..., -1, :] = xi
    return x
