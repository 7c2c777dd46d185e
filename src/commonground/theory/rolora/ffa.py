"""FFA-LoRA on the linear model: a stays where it started, only b is learned; its loss in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from commonground.theory.checks import at_least, between
from commonground.theory.draws import normal
from commonground.theory.rolora.algorithm import exact_b
from commonground.theory.rolora.problem import Problem

__all__ = ["FFADraws", "expected_ffa_loss", "ffa_draws", "ffa_excess"]

On = Literal["training", "new"]
AT_ONCE = 2_000_000  # numbers drawn at a time


def ffa_excess(clients: int, samples: int, on: On = "training") -> float:
    """c̃ of Proposition 5.5, exactly; for standard Gaussian inputs it depends on N and m alone.

    With α = aᵀa*, X_i a = u_i and X_i a* = αu_i + δ^0 w_i (u_i, w_i independent, standard normal), client i finds
    s_i = α + δ^0 R_i, R_i = u_iᵀw_i/‖u_i‖², so that the average is α + δ^0 R̄ and the loss of a client on its samples is
    (δ^0)²‖b*‖² E‖w_i − R̄u_i‖²/m. From E[u_iᵀw_i R_i] = 1, E[R_i²‖u_i‖²] = 1 and E[R_j²] = 1/(m − 2),

        1 + c̃ = 1 − 2/(Nm) + 1/(N²m) + (N − 1)/(N²(m − 2)),   c̃ = (N(4 − m) − 2) / (N² m (m − 2)),

    which is eq. (242). So |c̃| ≤ 1/(Nm) for every m ≥ 3, and c̃ is negative for m ≥ 4: b was fitted to the samples
    it is judged on. On new samples the excess is positive, E[R̄²] = 1/(N(m − 2)).

    Args:
        clients: N.
        samples: m.
        on: the samples b was fitted to, as the proposition has it, or new ones.

    Returns:
        c̃; infinite where m ≤ 2 (the estimate's variance is), except on the training samples of a single client, where
        it is −1/m for every m. The proposition does not exclude m ≤ 2.
    """
    at_least("the number of clients N", clients, 1)
    at_least("the number of samples m", samples, 1, "per client")
    if on == "training" and clients == 1:
        return -1 / samples
    if samples <= 2:
        return math.inf
    if on == "new":
        return 1 / (clients * (samples - 2))
    return (clients * (4 - samples) - 2) / (clients**2 * samples * (samples - 2))


def expected_ffa_loss(
    clients: int,
    samples: int | None,
    delta0: float,
    signal: float,
    client_variance: float = 0.0,
    on: On = "training",
) -> float:
    """FFA-LoRA's expected global loss: γ² + ‖b̄*‖²(δ^0)² + c̃(δ^0)²(‖b̄*‖² + γ²).

    With γ = 0 it is Proposition 5.5, (1 + c̃)‖b*‖²(δ^0)²; with infinitely many samples Proposition A.17. That c̃
    multiplies γ² too where clients differ follows as in :func:`ffa_excess` (the paper has no such case).

    Args:
        clients: N.
        samples: m, or None for infinitely many.
        delta0: δ^0.
        signal: ‖b̄*‖².
        client_variance: γ².
        on: see :func:`ffa_excess`.
    """
    between("delta0", delta0, 0, 1)
    excess = 0.0 if samples is None else ffa_excess(clients, samples, on)
    return client_variance + delta0**2 * (signal + excess * (signal + client_variance))


@dataclass(frozen=True)
class FFADraws:
    """Losses of FFA-LoRA over repeated draws of all samples, each [S, K].

    Attributes:
        training: on the samples b was fitted to, eq. (11).
        new: for infinitely many new samples.
        known: the loss of b = b̄* a*ᵀa^0 on the same samples as ``training``. Its expectation is known exactly
            (Proposition A.17), so ``training − known`` estimates what finite samples change, with far less noise.
        infinite: that expectation, [S].
    """

    training: torch.Tensor
    new: torch.Tensor
    known: torch.Tensor
    infinite: torch.Tensor

    @property
    def sharper(self) -> torch.Tensor:
        """``training`` with the noise it shares with ``known`` taken off; the same expectation."""
        return self.training - self.known + self.infinite[:, None]


def ffa_draws(problem: Problem, samples: int, draws: int) -> FFADraws:
    """FFA-LoRA by simulation: draw the clients' samples, fit b exactly, average (eqs. (182), (183)).

    Args:
        problem: S of them.
        samples: m per client.
        draws: K, independent repetitions of all samples.

    Raises:
        ConfigError: m < 1 or K < 1.
    """
    at_least("the number of samples m", samples, 1, "per client")
    at_least("the number of draws", draws, 1)
    a, mean = problem.a_start, problem.mean_b_star
    overlap = (a * problem.a_star).sum(dim=1, keepdim=True)
    goal = overlap * mean
    across = (a - overlap * problem.a_star).square().sum(dim=1)  # (δ^0)²
    infinite = problem.client_variance + problem.signal * across
    seeds, size = len(problem.seeds), problem.clients * samples * problem.dimension
    columns: list[tuple[torch.Tensor, ...]] = []
    while draws > 0:
        count = min(max(AT_ONCE // (seeds * size), 1), draws)
        shape = (count, problem.clients, samples, problem.dimension)
        inputs = normal(problem.seeds, "ffa-inputs", *shape, ids=(len(columns),), device=problem.device).flatten(0, 1)
        every = _repeated(problem, count)
        b = exact_b(inputs, every.a_start, every).mean(dim=1)
        best = goal.repeat_interleave(count, dim=0)
        excess = (b - best).square().sum(dim=1)  # Pythagoras, as in the loss of RoLoRA
        losses = (_training_loss(inputs, b, every), excess, _training_loss(inputs, best, every))
        columns.append(tuple(loss.reshape(seeds, count) for loss in losses))
        draws -= count
    training, excess, known = (torch.cat(column, dim=1) for column in zip(*columns, strict=True))
    return FFADraws(training, infinite[:, None] + excess, known, infinite)


def _repeated(problem: Problem, count: int) -> Problem:
    """Every seed's problem ``count`` times in a row."""
    a_star, b_star, a_start = (
        part.repeat_interleave(count, dim=0) for part in (problem.a_star, problem.b_star, problem.a_start)
    )
    return Problem(a_star, b_star, a_start, tuple(seed for seed in problem.seeds for _ in range(count)))


def _training_loss(inputs: torch.Tensor, b: torch.Tensor, problem: Problem) -> torch.Tensor:
    """(1/(Nm)) Σ ‖X_i a* b_i*ᵀ − X_i a^0 bᵀ‖²: [S]; from the residual's two factors, without an m × d matrix."""
    u, v = (inputs @ w[:, None, :, None] for w in (problem.a_start, problem.a_star))
    moments = [(p * q).sum(dim=(2, 3)) for p, q in ((v, v), (u, v), (u, u))]
    products = [(p * q).sum(dim=2) for p, q in ((problem.b_star, problem.b_star), (problem.b_star, b[:, None]))]
    power = b.square().sum(dim=1, keepdim=True)
    total = moments[0] * products[0] - 2 * moments[1] * products[1] + moments[2] * power
    return total.mean(dim=1) / inputs.shape[2]
