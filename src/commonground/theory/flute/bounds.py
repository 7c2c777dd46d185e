"""What Theorems 5.1 and 5.5 say, in numbers: gap, step sizes, the entering time T_R, the bound, and the true rate.

The body and the appendix count differently. In the body λ_i are Φ's singular values and Δ = 2(λ_k − λ_{k+1}); in the
appendix λ*_i = 2λ_i (the eigenvalues of diag(2Λ, −2Λ)) and Δ = λ*_k − λ*_{k+1}, the same number. Functions here take
Φ's singular values and speak the body's language.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from commonground.errors import ConfigError
from commonground.theory.checks import positive
from commonground.theory.flute.method import BODY, Convention

__all__ = [
    "STEP_CONSTANT",
    "asymptotic_rate",
    "balanced",
    "entering_time",
    "gap",
    "in_region",
    "stacked",
    "step_size_limit",
    "theorem_bound",
    "theorem_constant",
]

STEP_CONSTANT = 228.0
"""Theorem 5.1: η ≤ Δ²/(228 λ_1³). (Its proof uses a little less: η ≤ Δ²/(36 λ*_1³) of Prop. A.12 is Δ²/(288 λ_1³).)"""


def gap(singular_values: torch.Tensor, k: int) -> torch.Tensor:
    """Δ = 2(λ_k − λ_{k+1}) (§5), with λ_{k+1} = 0 where Φ has no more than k singular values: [S].

    Args:
        singular_values: of Φ in descending order, [S, min(d, M)].
        k: rank.

    Raises:
        ConfigError: k is out of range, or Δ = 0, which the theorems exclude.
    """
    count = singular_values.shape[1]
    if not 1 <= k <= count:
        raise ConfigError(f"k is {k}; it must lie in [1, {count}], the number of singular values of Φ")
    following = singular_values[:, k] if k < count else torch.zeros_like(singular_values[:, 0])
    delta = 2 * (singular_values[:, k - 1] - following)
    if not bool((delta > 0).all()):
        raise ConfigError(f"λ_k equals λ_(k+1) for k = {k}; the theorems assume a gap Δ > 0")
    return delta


def step_size_limit(singular_values: torch.Tensor, k: int, constant: float = STEP_CONSTANT) -> torch.Tensor:
    """Largest η of Theorem 5.1, Δ²/(228 λ_1³): [S]."""
    positive("constant", constant)
    return gap(singular_values, k).square() / (constant * singular_values[:, 0] ** 3)


def asymptotic_rate(
    singular_values: torch.Tensor, k: int, step: float, clients: int, convention: Convention = BODY, *, dimension: int
) -> torch.Tensor:
    """Factor by which ‖BW − Φ_k‖ falls per round near Φ_k in the population case, with γ1 = 2γ2: [S].

    Linearise a round at a balanced optimum B = U_k Λ_k^½, W = Λ_k^½ V_kᵀ and let g be the factor of the data's gradient
    (2 for eqs. (5)–(6), 1 for App. A.1, either divided by M where the mean over clients is taken). With b the component
    of B along u_j, j > k, and column i, and w that of W along v_j,

        b ← b + ηg(λ_j w − λ_i b),   w ← w + ηg(λ_j b − λ_i w),

    so b ± w are multiplied by 1 − ηg(λ_i ∓ λ_j), most slowly by 1 − ηg(λ_k − λ_{k+1}) = 1 − ηgΔ/2; components within
    the first k directions by 1 − ηg(λ_i + λ_j), and there are no others where k = d = M. The penalty's modes
    (BᵀB ≠ WWᵀ) leave BW alone to first order. So the rate is 1 − 2η(λ_k − λ_{k+1}) for eqs. (5)–(6) and
    1 − η(λ_k − λ_{k+1}) for App. A.1, unless the step is so large that the fastest mode, 1 − 2ηgλ_1, overshoots by
    more; then its absolute value is the rate (no convergence above 1).

    Args:
        singular_values: of Φ in descending order, [S, min(d, M)].
        k: rank.
        step: η.
        clients: M.
        convention: which form of the round.
        dimension: d.

    Raises:
        ConfigError: the convention is ``mean-B``, for which we give no closed form.
    """
    positive("step", step, "learning rate")
    if convention.clients == "mean-B":
        raise ConfigError("there is no closed form of the rate where only the gradient of B is averaged over clients")
    factor = step * convention.factors(clients)[0]
    beside = gap(singular_values, k) / 2 if k < max(dimension, clients) else 2 * singular_values[:, k - 1]
    slowest = (1 - factor * beside).abs()
    fastest = (1 - 2 * factor * singular_values[:, 0]).abs()
    return torch.maximum(slowest, fastest)


def stacked(phi: torch.Tensor, B: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """Θ of App. A.1: ((B̃ + W̃ᵀ)/√2 over (B̃ − W̃ᵀ)/√2) with B̃ = UᵀB, W̃ = WV, padded to d̄ = max(d, M) rows each.

    In the population case the appendix's round is exactly Θ ← Θ + (η/2) Λ̃Θ − (η/2) ΘΘᵀΘ, Λ̃ = diag(2Λ, −2Λ) (13).

    Returns:
        [S, 2 d̄, k].
    """
    u, _, vh = torch.linalg.svd(phi, full_matrices=True)
    rows = max(phi.shape[1], phi.shape[2])
    first, second = u.mT @ B, vh @ W.mT
    first = F.pad(first, (0, 0, 0, rows - first.shape[1]))
    second = F.pad(second, (0, 0, 0, rows - second.shape[1]))
    return torch.cat([first + second, first - second], dim=1) / 2**0.5


def entering_time(phi: torch.Tensor, k: int, B: torch.Tensor, W: torch.Tensor, step: float) -> torch.Tensor:
    """T_R of eq. (16) for a start B, W: [S], real numbers ≥ 0.

    log(Δ/(4σ_k²(Θ_k⁰))) / (2 log(1 + (η/2)(λ*_k − Δ/2))), where Θ_k⁰ are the first k rows of Θ⁰. It counts rounds of
    the appendix's update; that of eqs. (5)–(6) has twice the data's gradient and is in the region sooner.
    """
    positive("step", step, "learning rate")
    values = torch.linalg.svdvals(phi)
    delta = gap(values, k)
    smallest = torch.linalg.svdvals(stacked(phi, B, W)[:, :k])[:, -1]
    growth = torch.log1p(step / 2 * (2 * values[:, k - 1] - delta / 2))
    time: torch.Tensor = torch.log(delta / (4 * smallest.square())) / (2 * growth)
    return time.clamp(min=0)


def in_region(phi: torch.Tensor, k: int, B: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """Whether Θ lies in the region ℛ of App. A.2.1, from which convergence is linear: [S].

    σ_1²(Θ) ≤ 2λ*_1, σ_1²(Θ_res) ≤ λ*_k − Δ/2 and σ_k²(Θ_k) ≥ Δ/4.
    """
    values = torch.linalg.svdvals(phi)
    delta = gap(values, k)
    theta = stacked(phi, B, W)
    largest = torch.linalg.svdvals(theta)[:, 0].square()
    residual = torch.linalg.svdvals(theta[:, k:])[:, 0].square()
    smallest = torch.linalg.svdvals(theta[:, :k])[:, -1].square()
    inside: torch.Tensor = (
        (largest <= 4 * values[:, 0]) & (residual <= 2 * values[:, k - 1] - delta / 2) & (smallest >= delta / 4)
    )
    return inside


def theorem_constant(singular_values: torch.Tensor, k: int, step: float, entering: torch.Tensor) -> torch.Tensor:
    """c_2 of eq. (8) as its proof has it: [S].

    App. A.2.4 ends with c_4 κ √(k/M) (1 − ηΔ/16)^t, κ = λ*_1²/(ηΔ²) and c_4 = 400 (1 − ηΔ/16)^{−T_R}. In the body's
    λ_1 = λ*_1/2 that is c_2 = 4 c_4 = 1600 (1 − ηΔ/16)^{−T_R}.

    Args:
        singular_values: [S, min(d, M)].
        k: rank.
        step: η.
        entering: T_R, [S].
    """
    shrink = 1 - step * gap(singular_values, k) / 16
    constant: torch.Tensor = 1600 * shrink**-entering
    return constant


def theorem_bound(
    singular_values: torch.Tensor, k: int, step: float, clients: int, rounds: torch.Tensor, constant: torch.Tensor
) -> torch.Tensor:
    """Right-hand side of eq. (8): c_2 λ_1² √k / (√M η Δ²) · (1 − ηΔ/16)^t, [S, R].

    Args:
        singular_values: [S, min(d, M)].
        k: rank.
        step: η.
        clients: M.
        rounds: t, [R].
        constant: c_2, [S], see :func:`theorem_constant`.
    """
    delta = gap(singular_values, k)
    size = constant * singular_values[:, 0].square() * k**0.5 / (clients**0.5 * step * delta.square())
    bound: torch.Tensor = size[:, None] * (1 - step * delta / 16)[:, None] ** rounds
    return bound


def balanced(product: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """B, W with BW equal to a matrix of rank k and BᵀB = WWᵀ: [S, d, k], [S, k, M].

    At such a pair the penalty's gradient vanishes for γ1 = 2γ2 (γ2‖BᵀB − WWᵀ‖²_F is least), so that FLUTE rests exactly
    where the loss's own gradient vanishes: where FedRep rests.
    """
    u, s, vh = torch.linalg.svd(product, full_matrices=False)
    root = s[..., :k].sqrt()
    return u[..., :k] * root[..., None, :], root[..., :, None] * vh[..., :k, :]
