"""What Algorithm 2 does to the angle when every client has infinitely many samples: an exact recursion.

With c = η‖b̄*‖² (the share of the lemma's limit 1/‖b*‖² that the step takes; the theorem's constant c) the components
of a^{t+1} along a* and across it are, before normalising, cos θ (1 + 2c sin² θ) and sin θ (1 − 2c cos² θ), hence

    tan θ' = tan θ · |1 − 2c cos² θ| / (1 + 2c sin² θ),   δ' = δ |1 − 2c(1−δ²)| / √(1 + 4c² δ²(1−δ²)).

Near the solution the angle shrinks by |1 − 2c| per round: at once for c = 1/2, and not at all from c = 1 on, which is
the very limit η = 1/L_max² of Lemma 5.3. At c = 1, δ falls like 1/√(8t); beyond it, a stable two-cycle remains.
"""

from __future__ import annotations

import math

import torch

from commonground.theory.checks import at_least, between, positive

__all__ = ["angles", "heterogeneous_step_limit", "lemma_step_limit", "next_angle", "two_cycle"]


def next_angle(delta: torch.Tensor, c: torch.Tensor | float) -> torch.Tensor:
    """δ^{t+1} from δ^t for infinitely many samples (exact; see the module).

    Args:
        delta: [...], in [0, 1].
        c: η‖b̄*‖², of a shape that broadcasts.

    Returns:
        [...].
    """
    c = torch.as_tensor(c, dtype=delta.dtype, device=delta.device)
    along = 1 - delta.square()
    return delta * (1 - 2 * c * along).abs() / (1 + 4 * c.square() * delta.square() * along).sqrt()


def angles(delta0: float, c: float, rounds: int) -> torch.Tensor:
    """δ^0 … δ^T for infinitely many samples: [T+1], on the CPU.

    Raises:
        ConfigError: δ^0 outside [0, 1], c not positive, T < 0.
    """
    between("delta0", delta0, 0, 1)
    positive("c", c)
    at_least("the number of rounds T", rounds, 0)
    course = [float(delta0)]
    for _ in range(rounds):  # next_angle in plain numbers, many times as fast
        delta = course[-1]
        along = 1 - delta * delta
        course.append(delta * abs(1 - 2 * c * along) / math.sqrt(1 + 4 * c * c * delta * delta * along))
    return torch.tensor(course, dtype=torch.float64, device="cpu")


def lemma_step_limit(delta0: float) -> float:
    """The largest c = η‖b*‖² with which every round contracts as Lemma 5.3 claims: (3 + (δ^0)²) / 4.

    For infinitely many samples, from δ^0 down. The worst angle for c > 1/2 is δ → 0, where a round multiplies δ by
    2c − 1: the claim 2c − 1 ≤ √(1 − c(1 − (δ^0)²)) is c ≤ 1 − (1 − (δ^0)²)/4. The lemma allows c ≤ 1; its proof puts
    a lower bound of ‖b̄‖² into the absolute value of eq. (100), which is harmless only for 2η‖b̄‖² ≤ 1.
    """
    between("delta0", delta0, 0, 1)
    return (3 + delta0**2) / 4


def heterogeneous_step_limit(delta0: float) -> float:
    """As :func:`lemma_step_limit` for Lemma A.16, whose claim is stronger and whose limit is c ≤ 1/2: 1 / (2 − (δ^0)²).

    From 2c − 1 ≤ 1 − 2c(1 − (δ^0)²); never below the lemma's 1/2.
    """
    between("delta0", delta0, 0, 1)
    return 1 / (2 - delta0**2)


def two_cycle(c: float) -> float:
    """The angle distance between whose two sides a comes to swing for c > 1: √((c − 1) / (2c)); 0 up to c = 1.

    There |1 − 2c cos² θ| = 1 + 2c sin² θ. Its slope −1 + 2/c² lies inside (−1, 1): the cycle is stable.
    """
    positive("c", c)
    return math.sqrt((c - 1) / (2 * c)) if c > 1 else 0.0
