"""What the lemmas and theorems state, as numbers to compare with (RoLoRA, Section 5 and Appendix A)."""

from __future__ import annotations

import math

import torch

from commonground.errors import ConfigError
from commonground.theory.checks import at_least, between, positive
from commonground.theory.rolora.problem import Problem

__all__ = [
    "ROUNDING",
    "SMALLEST",
    "angle_floor",
    "contracts",
    "heterogeneous_factor",
    "heterogeneous_rounds",
    "lemma_factor",
    "theorem_rounds",
]

SMALLEST = 1e-12  # an angle below it is rounding more than algorithm; it is not judged
ROUNDING = 1e-15  # of the distance of two unit vectors


def lemma_factor(delta0: float, c: float) -> float:
    """√(1 − c(1 − (δ^0)²)) with c = η‖b*‖²: Lemma 5.3's bound on δ^{t+1}/δ^t, as eqs. (80) and (123) have it.

    Equation (9) is printed with (1 − δ^0)² and with ‖b*‖² outside the root; the appendix and the proof agree on this
    form. Where the radicand is negative (η beyond the lemma's limit) it is 0, which only δ^{t+1} = 0 would meet.
    """
    between("delta0", delta0, 0, 1)
    positive("c", c)
    return math.sqrt(max(1 - c * (1 - delta0**2), 0.0))


def heterogeneous_factor(delta0: float, c: float) -> float:
    """1 − 2c(1 − (δ^0)²) with c = η‖b̄*‖²: Lemma A.16's bound on δ^{t+1}/δ^t, eq. (254); 0 where it is negative."""
    between("delta0", delta0, 0, 1)
    positive("c", c)
    return max(1 - 2 * c * (1 - delta0**2), 0.0)


def theorem_rounds(delta0: float, epsilon: float, c: float) -> int:
    """T ≥ 2 / (c(1 − (δ^0)²)) · log(δ^0/ε), rounded up (Theorem 5.4).

    The theorem leaves c ∈ (0, 1) open; from Lemma 5.3 it is c = η‖b*‖² (eqs. (123), (167)).

    Raises:
        ConfigError: c outside (0, 1), δ^0 outside (0, 1), ε not positive.
    """
    return _rounds(2, delta0, epsilon, c)


def heterogeneous_rounds(delta0: float, epsilon: float, c: float) -> int:
    """T ≥ 1 / (c(1 − δ_0²)) · log(δ_0/ε), rounded up (Theorem A.14); c = 2η‖b̄*‖² from Lemma A.16."""
    return _rounds(1, delta0, epsilon, c)


def _rounds(factor: float, delta0: float, epsilon: float, c: float) -> int:
    for name, value in (("c", c), ("delta0", delta0)):
        if not 0 < value < 1:
            raise ConfigError(f"{name} is {value:g}; the theorem takes it strictly between 0 and 1")
    positive("epsilon", epsilon)
    return max(math.ceil(factor / (c * (1 - delta0**2)) * math.log(delta0 / epsilon)), 0)


def contracts(delta: torch.Tensor, factor: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether δ^{t+1} ≤ factor · δ^t, round by round.

    Args:
        delta: [..., T+1].
        factor: claimed; a number or a shape that broadcasts over [...].

    Returns:
        (true where it is so, true where it was judged), both [..., T]. Rounds that start below 1e-12 are not judged,
        and 1e-15 is allowed for rounding.
    """
    factor = torch.as_tensor(factor, dtype=delta.dtype, device=delta.device)[..., None]
    before, after = delta[..., :-1], delta[..., 1:]
    return after <= factor * before + ROUNDING, before > SMALLEST


def angle_floor(problem: Problem, samples: int, step: float) -> torch.Tensor:
    """The angle distance at which RoLoRA stalls when clients differ and have m samples: root mean square, first order.

    The paper treats this setting with infinitely many samples only. At a = a* the gradient across a* is then not zero
    but noise: −(2/(Nm)) Σ P X_iᵀX_i a* e_i with e_i = (b_i* − b̄*)·b̄*, of variance 4/(N² m) Σ e_i² in each of the d − 1
    directions. A round adds η² times that and multiplies by (1 − 2η‖b̄*‖²)². Valid for fresh samples and d ≪ Nm.

    Returns:
        [S]; 0 for clients that are alike.

    Raises:
        ConfigError: m < 1, or a step size that does not contract at all, η ≥ 1/‖b̄*‖².
    """
    at_least("the number of samples m", samples, 1)
    positive("the step size eta", step)
    c = step * problem.signal
    if not bool((c < 1).all()):
        raise ConfigError(f"the step size {step:g} is not below 1/‖b̄*‖² = {1 / float(problem.signal.max()):g}")
    mean = problem.mean_b_star[:, None]
    lean = ((problem.b_star - mean) * mean).sum(dim=2)  # e_i: [S, N]
    noise = 4 * step**2 * (problem.dimension - 1) / (problem.clients**2 * samples) * lean.square().sum(dim=1)
    return (noise / (1 - (1 - 2 * c).square())).sqrt()
