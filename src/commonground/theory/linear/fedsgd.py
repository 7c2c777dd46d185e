"""FedSGD: one model (B, w) for all clients (Collins et al. 2021, equation 5 and Section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from commonground.theory.checks import TOO_LARGE, OnDivergence, Watch, at_least, positive
from commonground.theory.linear.problem import Problem, Samples, check_samples, clients_per_round, participants
from commonground.theory.linear.starts import Start
from commonground.theory.linear.theorem import usable_step
from commonground.theory.subspace import principal_angle_distance

__all__ = ["SingleModel", "fedsgd", "single_model_error"]


@dataclass(frozen=True)
class SingleModel:
    """What FedSGD ends with.

    Attributes:
        B: [S, d, k], not orthonormal.
        w: [S, k].
        distance: [S, T + 1], principal angle distance of B^t to B*.
        training: [S, T + 1], (1/2m) mean squared error on the samples of the clients taking part in round t; 1e12 from
            the round on in which a seed overflowed, whose B and w are those before.
    """

    B: torch.Tensor
    w: torch.Tensor
    distance: torch.Tensor
    training: torch.Tensor

    @property
    def theta(self) -> torch.Tensor:
        """The model's regressor Bw: [S, d]."""
        return (self.B @ self.w[..., None])[..., 0]

    @property
    def went_up(self) -> torch.Tensor:
        """[S], whether the last tenth of the rounds has (in the median) more than twice the start's training loss."""
        last = self.training[:, -max(self.training.shape[1] // 10, 1) :].median(dim=1).values
        return last > 2 * self.training[:, 0]


def fedsgd(
    problem: Problem,
    start: Start,
    rounds: int,
    step: float,
    data: Samples,
    r: float = 1.0,
    on_divergence: OnDivergence = "raise",
) -> SingleModel:
    """Distributed gradient descent on (1/2mn) Σ_ij (y_ij − ⟨Bw, x_ij⟩)² over B and w together, on fixed samples.

    Each round the rn clients chosen send their gradients of B and w on all their m samples, and the server steps along
    the averages. B starts where ``start`` says, w at the mean of its heads.

    Raises:
        ConfigError: a step that is not positive, T < 0, data of another problem, or rn < 1.
        DivergenceError: an iterate overflows.
    """
    at_least("rounds", rounds, 0)
    positive("step", step)
    check_samples(problem, data)
    count = clients_per_round(problem.n, r)
    # The loss of a client is a quadratic in Bw with these coefficients.
    grams = data.x.mT @ data.x / data.m
    pulls = (data.x.mT @ data.y[..., None])[..., 0] / data.m
    powers = data.y.square().mean(-1)
    B, w = start.B.clone(), start.W.mean(1)
    watch = Watch(problem.seeds, problem.device, on_divergence, lambda: f"step={usable_step(problem, step):.3g}")
    rows = torch.arange(len(problem.seeds), device=problem.device)[:, None]
    distances, training = [], []
    gram, pull, power = grams.mean(1), pulls.mean(1), powers.mean(1)
    for round in range(rounds + 1):
        chosen = participants(problem, count, round)
        if chosen is not None:
            gram, pull, power = (each[rows, chosen].mean(1) for each in (grams, pulls, powers))
        theta = (B @ w[..., None])[..., 0]
        distances.append(principal_angle_distance(B, problem.B_star))
        training.append((power - 2 * (pull * theta).sum(-1) + (theta * (gram @ theta[..., None])[..., 0]).sum(-1)) / 2)
        if round == rounds:
            break
        slope = (gram @ theta[..., None])[..., 0] - pull
        new_B, new_w = B - step * slope[..., None] * w[:, None, :], w - step * (B.mT @ slope[..., None])[..., 0]
        gone = watch.look(torch.cat([new_B.flatten(1), new_w], 1), "FedSGD", round + 1, step, problem.k**0.5)
        if gone is not None:
            new_B, new_w = torch.where(gone[:, None, None], B, new_B), torch.where(gone[:, None], w, new_w)
        B, w = new_B, new_w
    return SingleModel(B, w, torch.stack(distances, 1), watch.from_then_on(torch.stack(training, 1), TOO_LARGE))


def single_model_error(problem: Problem) -> torch.Tensor:
    """Mean squared error of the best single model, (1/n) Σ_i ‖θ_i − θ̄‖², twice the global error below (5): [S]."""
    theta = problem.theta
    return (theta - theta.mean(1, keepdim=True)).square().sum(-1).mean(1)
