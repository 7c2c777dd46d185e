"""FLUTE for the linear model: Algorithm 1, eqs. (4)–(6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from commonground.theory.checks import OnDivergence, Watch, at_least, positive
from commonground.theory.flute.problem import LinearProblem
from commonground.theory.flute.trajectory import Recorder, Trajectory

__all__ = ["APPENDIX", "BODY", "Convention", "flute", "flute_round", "objective"]


@dataclass(frozen=True)
class Convention:
    """How the data's part of the update is scaled.

    Attributes:
        clients: ``sum``: the server adds the clients' gradients for B, as eq. (5) says, and every head takes its own
            gradient. ``mean``: both are divided by M, as the gradient of objective (4) would have it. ``mean-B``: only
            the gradient of B is (averaged as in FedAvg), heads take their own.
        loss: ``square``: L_i = (1/N) Σ ‖xᵀBw_i − y‖², whose gradient carries a factor 2 (§4.3). ``half-square``: half
            of it, whose gradient does not (App. A.1).
    """

    clients: Literal["sum", "mean", "mean-B"] = "sum"
    loss: Literal["square", "half-square"] = "square"

    def factors(self, clients: int) -> tuple[float, float]:
        """(a, b): B moves by −ηa Σ_i (S_i Bw_i − c_i) w_iᵀ and w_i by −ηb Bᵀ(S_i Bw_i − c_i)."""
        gradient = 2.0 if self.loss == "square" else 1.0
        body = gradient if self.clients == "sum" else gradient / clients
        return body, gradient / clients if self.clients == "mean" else gradient


BODY = Convention()
"""Eqs. (5) and (6) taken literally."""
APPENDIX = Convention(loss="half-square")
"""The update that App. A.1 analyses."""


def flute(
    problem: LinearProblem,
    k: int,
    rounds: int,
    step: float,
    start: tuple[torch.Tensor, torch.Tensor],
    *,
    server_step: float | None = None,
    gamma1: float = 0.25,
    gamma2: float = 0.125,
    convention: Convention = BODY,
    every: int = 1,
    on_divergence: OnDivergence = "raise",
) -> Trajectory:
    """Run FLUTE (Algorithm 1).

    Args:
        problem: the regressions, of S seeds.
        k: rank.
        rounds: T.
        step: η_l.
        start: B⁰ [S, d, k] and W⁰ [S, k, M], see :func:`~commonground.theory.flute.problem.random_start`.
        server_step: η_r; by default η_l, as Theorem 5.1 sets it.
        gamma1, gamma2: weights of the two penalties; Theorem 5.1 has 1/4 and 1/8.
        convention: scaling of the data's gradients.
        every: record every so many rounds.
        on_divergence: ``raise`` ends the run with an error; ``record`` stops the seed concerned, goes on with the
            others and says so in the trajectory; ``most`` does that as long as no more than half of the seeds diverge.

    Raises:
        ConfigError: k is impossible, or a number is out of range.
        DivergenceError: an iterate grows beyond every range.
    """
    problem.check_rank(k)
    at_least("rounds", rounds, 0)
    positive("step", step, "learning rate")
    server_step = step if server_step is None else server_step
    at_least("server_step", server_step, 0)
    at_least("gamma1", gamma1, 0)
    at_least("gamma2", gamma2, 0)
    B, W = start
    scale = max(1.0, float(problem.phi.abs().max()))
    penalty = 2 * gamma1 + 4 * gamma2
    watch = Watch(
        problem.seeds,
        problem.device,
        on_divergence,
        lambda: f"step={min(step / 2, 1 / _curvature(problem, start, convention, penalty)):.3g}",
    )
    recorder = Recorder(problem, k, every)
    recorder.record(0, rounds, B, W)
    for round in range(1, rounds + 1):
        if not bool(watch.gone.all()):
            new_B, new_W = flute_round(problem, B, W, step, server_step, gamma1, gamma2, convention)
            gone = watch.look(torch.cat([new_B.flatten(1), new_W.flatten(1)], dim=1), "FLUTE", round, step, scale)
            if gone is not None:
                stopped = gone[:, None, None]
                new_B, new_W = torch.where(stopped, B, new_B), torch.where(stopped, W, new_W)
            B, W = new_B, new_W
        recorder.record(round, rounds, B, W)
    return recorder.finish("FLUTE", B, W, watch.ended)


def flute_round(
    problem: LinearProblem,
    B: torch.Tensor,
    W: torch.Tensor,
    step: float,
    server_step: float,
    gamma1: float,
    gamma2: float,
    convention: Convention = BODY,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One round: eq. (5), then eq. (6), both with gradients at B^{t−1}, W^{t−1}.

    Written out, with G the d × M matrix of columns S_i Bw_i − c_i (BW − Φ in the population case),

        B ← B − 2η_l G Wᵀ + η_r (2γ1 B WWᵀ − 4γ2 B BᵀB)
        W ← W − 2η_l BᵀG + η_r (2γ1 BᵀB W − 4γ2 WWᵀ W)

    With γ1 = 1/4, γ2 = 1/8 and η_l = η_r = η the penalty's part is −(η/2) B(BᵀB − WWᵀ) and +(η/2)(BᵀB − WWᵀ)W: exactly
    App. A.1's. The data's part there is −ηGWᵀ and −ηBᵀG, half of the body's: the appendix analyses the loss halved
    (:data:`APPENDIX`). Misprints there: the line of W̃ carries "−(η/2)" before the penalty, against the line of W just
    above it and against (13), which only follows with "+"; the line of B̃ has a W̃^{t−1} that should be W̃^t; and the
    second lines of the updates drop the noise that (11) and (12) bring back.
    """
    body_factor, head_factor = convention.factors(problem.clients)
    gradient = problem.residual(B @ W)
    gram_B, gram_W = B.mT @ B, W @ W.mT
    new_B = B - step * body_factor * gradient @ W.mT + server_step * B @ (2 * gamma1 * gram_W - 4 * gamma2 * gram_B)
    new_W = W - step * head_factor * B.mT @ gradient + server_step * (2 * gamma1 * gram_B - 4 * gamma2 * gram_W) @ W
    return new_B, new_W


def objective(
    problem: LinearProblem,
    B: torch.Tensor,
    W: torch.Tensor,
    gamma1: float = 0.25,
    gamma2: float = 0.125,
    convention: Convention = BODY,
) -> torch.Tensor:
    """What a round with η_l = η_r steps downhill on: objective (4) with the convention's sum or mean and factor, [S].

    Eq. (4) has the mean over clients before the loss, eq. (5) the sum of their gradients: the step (5)–(6) is the
    gradient of (4) with Σ_i in place of (1/M) Σ_i. With ``mean-B`` it is the gradient of no function; the sum is
    returned then.
    """
    weight = (1.0 if convention.loss == "square" else 0.5) * (1 if convention.clients == "mean" else problem.clients)
    product = B @ W
    gram_B, gram_W = B.mT @ B, W @ W.mT
    penalty = gamma2 * (_squared(gram_B) + _squared(gram_W)) - gamma1 * _squared(product)
    return weight * problem.loss(product) + penalty


def _curvature(
    problem: LinearProblem, start: tuple[torch.Tensor, torch.Tensor], convention: Convention, penalty: float
) -> float:
    """About how much what a round steps downhill on curves at most, on the way from this start to a balanced Φ_k.

    B and W are then no larger than the root of λ_1, or than they start, and a client's loss curves by its samples.
    """
    sizes = [torch.linalg.matrix_norm(problem.phi, ord=2)]
    sizes += [torch.linalg.matrix_norm(each, ord=2).square() for each in start]
    largest = max(float(each.max()) for each in sizes)
    bent = 1.0 if problem.covariance is None else float(torch.linalg.eigvalsh(problem.covariance).max())
    return largest * (max(convention.factors(problem.clients)) * (1 + bent) + 2 * penalty)


def _squared(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.square().sum(dim=(1, 2))
