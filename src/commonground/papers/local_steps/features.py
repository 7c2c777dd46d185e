"""What the feature-learning experiments of Bao, Crawshaw, Liu (2024) share: settings, rounds, groups of clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from commonground.errors import ConfigError
from commonground.papers.claims import fraction
from commonground.papers.figures import Curve, mean_curve
from commonground.papers.outcome import Claim
from commonground.papers.request import Settings
from commonground.theory.checks import at_least, positive
from commonground.theory.features import (
    Dynamics,
    FeatureModel,
    beta_limit,
    learning_rounds,
    memorisation_rounds,
    rho_for_gap,
)

__all__ = [
    "PAPER",
    "SEEDS",
    "Count",
    "FeatureSettings",
    "by_group",
    "describe",
    "group_curves",
    "in_every_client",
    "remarks",
]

PAPER = "Bao, Crawshaw, Liu 2024"
SEEDS = 80
MOST_ROUNDS = 1_000_000
LEAST_SHARE = 0.95
SURE = f"at least {LEAST_SHARE:.0%} of them stands for the paper's high probability"
Count = Annotated[int, Field(ge=1)]


class FeatureSettings(Settings):
    """Settings of every feature-learning experiment, in the paper's letters (Definition 3.1, Parameter 1).

    The paper gives orders of magnitude; the constants are ours, chosen so that the theorems show at a few hundred
    dimensions. What decides is α³n/(√dσ_ξ)³, the feature's pull within a client against a noise patch's (4 here). Far
    below it, noise wins within a client too; far above it, samples are memorised at times so different that the
    clients' derivatives ν_i no longer cancel in (B.1), and some confounding feature grows after all. σ0 = 0.1 d^-0.52
    keeps what random filters know of a feature far below the memorised noise, so that every single client guesses.

    Attributes:
        d, K, K0, N, n, m: dimensions, see :class:`~commonground.theory.features.FeatureModel`.
        alpha: α.
        rho: ρ; None: from ``gap`` (Parameter 1).
        gap: α³ − K0ρ³; None: K/d, as the appendix has it.
        beta: β; None: β³ = α³/(4K0), half of what Parameter 1 allows.
        sigma_xi, sigma_0: standard deviations of noise and start; None: the factor beside times d^-0.51 and d^-0.52.
        sigma_xi_factor, sigma_0_factor: the constants of these Θ(·).
        eta: η.
        rounds: global rounds T; None: 1.5 times the larger of K/(ηα³σ0) (features, Lemma B.2) and Nn/(η(√dσ_ξ)³σ0)
            (noise, Lemma 5.2).
        local_steps: T of local updates; None: 4/(ηα³σ0) (Lemma 6.1) or 1.5n/(η(√dσ_ξ)³σ0), whichever is more.
        directions: draws of the noise's direction in the test error, which is analytic otherwise.
        points: recorded rounds of a curve.
        dynamics: ``reduced`` or ``full``: the same numbers, the second from weights and patches written out.
    """

    also: ClassVar[Mapping[str, str]] = {
        "dimension": "d",
        "k": "K",
        "M": "N",
        "clients": "N",
        "samples": "n",
        "step": "eta",
    }

    d: Count = 500
    K: Count = 6
    K0: Count = 3
    N: Count = 6
    n: Count = 5
    m: Count = 40
    alpha: float = 1.3
    rho: float | None = None
    gap: float | None = None
    beta: float | None = None
    sigma_xi: float | None = None
    sigma_xi_factor: float = 1.5
    sigma_0: float | None = None
    sigma_0_factor: float = 0.1
    eta: float = 1.0
    rounds: int | None = Field(default=None, ge=1)
    local_steps: int | None = Field(default=None, ge=1)
    directions: Count = 500
    points: int = Field(default=30, ge=2)
    dynamics: Dynamics = "reduced"

    def model(self) -> FeatureModel:
        """The data model these settings describe.

        Raises:
            ConfigError: they make no sense.
        """
        at_least("K0", self.K0, 1, "the theorems are about confounding features")
        positive("alpha", self.alpha)
        positive("eta", self.eta)
        if self.rho is not None and self.gap is not None:
            raise ConfigError(f"rho = {self.rho:g} and gap = {self.gap:g} are both set; one follows from the other")
        rho = self.rho
        if rho is None:
            gap = self.K / self.d if self.gap is None else self.gap
            rho = rho_for_gap(self.alpha, self.K0, gap)
        beta = beta_limit(self.alpha, self.K0) / math.cbrt(2) if self.beta is None else self.beta
        sigma_xi = self.sigma_xi_factor * self.d**-0.51 if self.sigma_xi is None else self.sigma_xi
        sigma_0 = self.sigma_0_factor * self.d**-0.52 if self.sigma_0 is None else self.sigma_0
        dimensions = (self.d, self.K, self.K0, self.N, self.n, self.m)
        return FeatureModel(*dimensions, self.alpha, rho, beta, sigma_xi, sigma_0)

    def global_rounds(self, model: FeatureModel) -> int:
        """T of global updates."""
        if self.rounds is not None:
            return self.rounds
        return _feasible("rounds", 1.5 * max(learning_rounds(model, self.eta), memorisation_rounds(model, self.eta)))

    def steps(self, model: FeatureModel) -> int:
        """T of local updates."""
        if self.local_steps is not None:
            return self.local_steps
        noise = memorisation_rounds(model, self.eta) / model.N
        return _feasible("local_steps", max(4 * learning_rounds(model, self.eta, local=True), 1.5 * noise))


def _feasible(name: str, rounds: float) -> int:
    if not rounds <= MOST_ROUNDS:
        raise ConfigError(f"{name} would be {rounds:.3g} by the paper's order; set {name} or a larger eta")
    return math.ceil(rounds)


def describe(model: FeatureModel) -> str:
    """Dimensions and scales in a line."""
    return (
        f"d = {model.d}, K = {model.K}, K0 = {model.K0}, N = {model.N}, n = {model.n}, m = {model.m}, "
        f"α = {model.alpha:g}, ρ = {model.rho:.4g}, β = {model.beta:.4g}, σ_ξ = {model.sigma_xi:.4g}, "
        f"σ0 = {model.sigma_0:.4g}"
    )


def remarks(settings: FeatureSettings, model: FeatureModel) -> list[str]:
    """What a reader should know of the settings before trusting the claims."""
    notes = [f"{describe(model)}, η = {settings.eta:g}. Both scales are the same: the paper names orders, no numbers."]
    if settings.eta > math.log(model.d):
        notes.append(f"η = {settings.eta:g} is beyond log d: the theorems are stated for η in (0, Õ(1)].")
    if 2 * model.K0 * model.beta**3 > model.alpha**3 * (1 + 1e-9):
        notes.append(f"β = {model.beta:.4g} is beyond Parameter 1's limit (α³/(2K0))^(1/3).")
    return notes


def by_group(model: FeatureModel) -> dict[str, torch.Tensor]:
    """Clients by kind, [N] bool each, on the CPU; a kind without clients is left out."""
    groups = {"confounding": model.confounded, "normal": ~model.confounded}
    return {name: mask for name, mask in groups.items() if bool(mask.any())}


def group_curves(x: Sequence[float], what: str, values: torch.Tensor, model: FeatureModel) -> dict[str, Curve]:
    """A curve of the mean over each kind's clients, from [S, R, N]."""
    return {
        f"{what}, {name} clients": mean_curve(x, values[..., mask].mean(-1)) for name, mask in by_group(model).items()
    }


def in_every_client(text: str, source: str, paper: str, happened: torch.Tensor, of: str = "seed and client") -> Claim:
    """A statement about every client (or feature), judged by the share of pairs with a seed it is true for.

    Args:
        text, source, paper: see :class:`~commonground.papers.outcome.Claim`.
        happened: [S, clients], bool.
        of: what the pairs are.
    """
    text = f"{text} (share of all pairs of {of}; {SURE})"
    return fraction(text, source, paper, happened, LEAST_SHARE)


def not_in_every_client(text: str, source: str, paper: str, happened: torch.Tensor) -> Claim:
    """That a statement fails: by the same share, and the same bound from its other side, as in :func:`in_every_client`,
    so that nothing can hold and fail at once.
    """
    text = f"{text}: not so (share of all pairs of seed and client; below {LEAST_SHARE:.0%})"
    return fraction(text, source, paper, happened, LEAST_SHARE, "below")
