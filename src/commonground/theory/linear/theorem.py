"""Theorem 1 of Collins et al. 2021 in numbers: its constants, its step size and its bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import torch

from commonground.theory.checks import at_least, between, positive
from commonground.theory.draws import normal
from commonground.theory.linear.problem import Problem, participants

__all__ = [
    "SubsetExtremes",
    "contraction_factor",
    "distance_bound",
    "drawn_extremes",
    "sample_size_unit",
    "step_limit",
    "subset_extremes",
    "usable_step",
]

MOST_SUBSETS = 20_000
STARTS, SWEEPS = 200, 50


@dataclass(frozen=True)
class SubsetExtremes:
    """σ̄_min,* and σ̄_max,* of Assumption 2: over subsets I of rn clients, of W*_I / √(rn).

    Attributes:
        smallest, largest: [S].
        over: which subsets: ``all`` (exact), ``search`` (the most extreme that a local search finds: ``smallest`` is
            then an upper bound of σ̄_min,* and ``largest`` a lower one of σ̄_max,*), or ``drawn`` (those that took part).
    """

    smallest: torch.Tensor
    largest: torch.Tensor
    over: str

    @property
    def kappa(self) -> torch.Tensor:
        """κ = σ̄_max,* / σ̄_min,*, infinite where some subset does not span R^k: [S]."""
        return self.largest / self.smallest


def subset_extremes(problem: Problem, count: int) -> SubsetExtremes:
    """σ̄_min,* and σ̄_max,* over all subsets of ``count`` = rn clients.

    Exact where at most 20 000 subsets exist (one for r = 1). Otherwise they are too many, and both are looked for by
    alternation from 200 directions u: take the rn clients with the smallest (largest) ⟨w_i*, u⟩², then the direction
    in which these are smallest (largest), until nothing changes. Each step moves the singular value the right way, so
    the search ends in a local extremum. A σ̄_min,* too large makes the bound (11) stricter than the theorem's: what
    satisfies it satisfies the theorem.

    Raises:
        ConfigError: rn outside [1, n].
    """
    between("rn", count, 1, problem.n, "clients per round")
    products = problem.W_star[..., :, None] * problem.W_star[..., None, :] / count  # [S, n, k, k]
    if math.comb(problem.n, count) <= MOST_SUBSETS:
        member = torch.zeros(math.comb(problem.n, count), problem.n, dtype=products.dtype, device="cpu")
        for row, subset in enumerate(combinations(range(problem.n), count)):
            member[row, list(subset)] = 1
        member = member.to(products.device)
        spectra = torch.stack(
            [torch.linalg.eigvalsh((member @ p.flatten(1)).unflatten(1, p.shape[1:])) for p in products]
        )
        low, high = spectra[..., 0].amin(1), spectra[..., -1].amax(1)
        return SubsetExtremes(low.clamp(min=0).sqrt(), high.sqrt(), "all")
    low = _search(problem, products, count, largest=False)
    high = _search(problem, products, count, largest=True)
    return SubsetExtremes(low.clamp(min=0).sqrt(), high.sqrt(), "search")


def drawn_extremes(problem: Problem, count: int, rounds: int) -> SubsetExtremes:
    """The same over the subsets that take part in rounds 0 … T − 1 only."""
    at_least("rounds", rounds, 1)
    rows = torch.arange(len(problem.seeds), device=problem.device)[:, None]
    spectra = []
    for round in range(rounds):
        chosen = participants(problem, count, round)
        W = problem.W_star if chosen is None else problem.W_star[rows, chosen]
        spectra.append(torch.linalg.svdvals(W / count**0.5))
        if chosen is None:
            break
    values = torch.stack(spectra, 1)  # [S, rounds, min(rn, k)]
    smallest = values[..., -1].amin(1) if count >= problem.k else values.new_zeros(len(rows))
    return SubsetExtremes(smallest, values[..., 0].amax(1), "drawn")


def step_limit(sigma_max: torch.Tensor) -> torch.Tensor:
    """The largest step size of Theorem 1, 1/(4 σ̄_max,*²)."""
    return 1 / (4 * sigma_max.square())


def usable_step(problem: Problem, step: float) -> float:
    """A step size to take where this one diverges: half of it, or less where that is still too large.

    It is within Theorem 1's limit whichever clients take part, as no σ̄_max,*² is above the largest ‖w_i*‖². Heads and a
    single model bear it as well, whose curvature is about 1.
    """
    largest = float(problem.W_star.square().sum(-1).max())
    return min(step / 2, 1 / (4 * max(largest, 1.0)))


def contraction_factor(step: torch.Tensor, E0: torch.Tensor, sigma_min: torch.Tensor) -> torch.Tensor:
    """√(1 − η E0 σ̄_min,*²/2): what a round multiplies the distance by at most (Lemma 6).

    Where the radicand is negative (η far beyond the theorem's limit) it is 0, and the theorem says nothing.
    """
    return (1 - step * E0 * sigma_min.square() / 2).clamp(min=0).sqrt()


def distance_bound(factor: torch.Tensor, distance: torch.Tensor, rounds: int) -> torch.Tensor:
    """The right side of (11) after 0 … T rounds: [S, T + 1].

    Args:
        factor: [S], :func:`contraction_factor`.
        distance: [S], dist(B⁰, B*).
        rounds: T.
    """
    return distance[:, None] * factor[:, None] ** torch.arange(rounds + 1, dtype=factor.dtype, device=factor.device)


def sample_size_unit(d: int, k: int, count: int, kappa: torch.Tensor, E0: torch.Tensor) -> torch.Tensor:
    """κ⁴k²d/(E0² rn) + κ⁴k³ log(rn)/E0²: Theorem 1 asks for m ≥ c times this, with an absolute constant c it does not
    name.
    """
    positive("rn", count)
    return kappa**4 * k**2 * (d / count + k * math.log(count)) / E0.square()


def _search(problem: Problem, products: torch.Tensor, count: int, largest: bool) -> torch.Tensor:
    """The most extreme eigenvalue that alternation between subset and direction finds: [S]."""
    u = normal(problem.seeds, "linear directions", STARTS, problem.k, device=problem.device)
    which = -1 if largest else 0
    best = u.new_full(u.shape[:2], -math.inf if largest else math.inf)
    for _ in range(SWEEPS):
        scores = (u @ problem.W_star.mT).square()  # [S, starts, n]
        chosen = scores.topk(count, dim=2, largest=largest, sorted=False).indices  # which, in whatever order
        member = torch.zeros_like(scores).scatter_(2, chosen, 1.0)
        values, vectors = torch.linalg.eigh((member @ products.flatten(2)).unflatten(2, products.shape[2:]))
        u, found = vectors[..., which], values[..., which]
        better = found > best + 1e-12 if largest else found < best - 1e-12
        if not bool(better.any()):
            break
        best = torch.where(better, found, best)
    return best.amax(1) if largest else best.amin(1)
