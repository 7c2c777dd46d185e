"""FedRep for linear regression (Collins et al. 2021, Algorithm 2) and its variants with gradient steps on the heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from commonground.errors import ConfigError
from commonground.theory.checks import TOO_LARGE, OnDivergence, Watch, at_least, positive
from commonground.theory.linear.least_squares import least_squares
from commonground.theory.linear.problem import (
    Problem,
    Samples,
    check_samples,
    clients_per_round,
    draw_samples,
    participants,
)
from commonground.theory.linear.starts import Start
from commonground.theory.linear.theorem import usable_step
from commonground.theory.subspace import principal_angle_distance

__all__ = ["Alternation", "Trajectory", "alternate", "smaller_step"]


@dataclass(frozen=True)
class Alternation:
    """A method that alternates between heads and representation.

    Attributes:
        head_steps: gradient steps on the head per round, or None for the exact head: None is FedRep, 1 is GD-GD, k is
            kGD-GD (Section 5.1).
        step: η, of the representation.
        head_step: of the heads' gradient steps, by default η too (Algorithm 1 has one step size for both).
        orthonormalise: whether the server ends a round by QR, as Algorithm 2 does. For FedRep that changes the size of
            its steps alone. GD-GD's heads persist and do not follow the change of basis, so that QR takes from each
            round what the last one has matched; without it GD-GD is plain alternating gradient descent.
    """

    head_steps: int | None
    step: float
    head_step: float | None = None
    orthonormalise: bool = True

    def __post_init__(self) -> None:
        positive("step", self.step, "step size of the representation")
        if self.head_steps is not None:
            at_least("head_steps", self.head_steps, 1, "gradient steps on the head per round")
        if self.head_step is not None:
            positive("head_step", self.head_step, "step size of the heads")

    @property
    def name(self) -> str:
        """As the paper calls it, and whether QR is left out."""
        if self.head_steps is None:
            name = "FedRep"
        else:
            name = "GD-GD" if self.head_steps == 1 else f"{self.head_steps}GD-GD"
        return name if self.orthonormalise else f"{name} without QR"


@dataclass(frozen=True)
class Trajectory:
    """What a method went through in T rounds; index t is after t rounds.

    Attributes:
        distance: [S, T + 1], principal angle distance of B^t to B* (Definition 1).
        training: [S, T + 1], function value (9) on the samples of the clients taking part in round t, with the heads
            that round finds for B^t.
        value: [S, T + 1], the same with the expectation over noise-free test samples instead of the training samples:
            ½ · mean ‖B^t w_i − B* w_i*‖² (equation 4).
        B: [S, d, k], the last representation.
        W: [S, n, k], the last heads of all clients (of those that never took part, the start's).
        diverged: [S], the round in which a seed overflowed, −1 where it never did. From then on its distance is 1, the
            largest there is, and its function values are 1e12.
    """

    distance: torch.Tensor
    training: torch.Tensor
    value: torch.Tensor
    B: torch.Tensor
    W: torch.Tensor
    diverged: torch.Tensor

    @property
    def went_away(self) -> torch.Tensor:
        """[S], whether the last tenth of the rounds lies (in the median) more than twice as far from B* as the start.

        The QR of every round keeps B bounded, so that a step size too large for FedRep never shows as an overflow: the
        representation wanders instead, and this tells. Distances below 1e-9 count as arrived, overflows as gone.
        """
        last = self.distance[:, -max(self.distance.shape[1] // 10, 1) :].median(dim=1).values
        first = self.distance[:, 0]
        return (last > torch.minimum(2 * first, (1 + first) / 2).clamp(min=1e-9)) | (self.diverged >= 0)


def alternate(
    problem: Problem,
    method: Alternation,
    start: Start,
    rounds: int,
    *,
    data: Samples | None = None,
    m: int | None = None,
    r: float = 1.0,
    on_divergence: OnDivergence = "raise",
) -> Trajectory:
    """Run FedRep (Algorithm 2), GD-GD or kGD-GD.

    Each round, rn clients find their heads for the representation B they are sent (the exact minimiser of (8), or
    ``head_steps`` gradient steps from their last head, which they keep while they are not chosen), take one gradient
    step on B with the same samples, and the server averages and, unless the method leaves that out, orthonormalises:
    B̄ = B R by QR. Clients are sent B alone, so heads are not changed by R; R's diagonal is taken positive, since a
    flipped column would undo the heads that persist (FedRep, whose heads do not, is unaffected).

    With the exact head, the gradient of B vanishes for m ≤ k: k weights fit m samples without residual. FedRep then
    stays where it starts.

    Args:
        problem: the ground truth.
        method: what to run.
        start: first iterates.
        rounds: T.
        data: fixed samples of all clients for every round (as in the figures, Appendix A.1), or None.
        m: fresh samples per client and round (as in Algorithm 2), where ``data`` is None.
        r: participation rate.
        on_divergence: what a seed whose iterate overflows does; where it does not end the run, the others go on.

    Raises:
        ConfigError: T < 0, neither or both of data and m, data of another problem, or rn < 1.
        DivergenceError: an iterate overflows.
    """
    at_least("rounds", rounds, 0)
    if (data is None) == (m is None):
        raise ConfigError("give either data (fixed samples) or m (fresh samples per round), and not both")
    if data is not None:
        check_samples(problem, data)
    count = clients_per_round(problem.n, r)
    B, W = start.B, start.W.clone()
    rows = torch.arange(len(problem.seeds), device=problem.device)[:, None]
    head_step = method.head_step or method.step
    which = "representation" if method.head_steps is None else f"representation; head step {head_step:g}"

    def instead() -> str:
        name, value = smaller_step(problem, method, data or draw_samples(problem, m or 0, "round", (0,)))
        return f"{name}={value:.3g}"

    watch = Watch(problem.seeds, problem.device, on_divergence, instead)
    distances, training, values = [], [], []
    theta = problem.theta
    for round in range(rounds + 1):
        chosen = participants(problem, count, round)
        if data is not None:
            batch = data if chosen is None else data.of(chosen)
        else:
            batch = draw_samples(problem, m or 0, "round", (round,), chosen)
        inputs = batch.x.flatten(1, 2)  # [S, rn·m, d]
        features = (inputs @ B).unflatten(1, (count, batch.m))
        w = _heads(method, features, batch.y, W if chosen is None else W[rows, chosen])
        gone = watch.look(w, f"{method.name} (heads)", round, head_step, problem.k**0.5)
        w = w if gone is None else w.masked_fill(gone[:, None, None], 0.0)
        if chosen is None:
            W, truth = w, theta
        else:
            W[rows, chosen] = w
            truth = theta[rows, chosen]
        residual = (features @ w[..., None])[..., 0] - batch.y
        distances.append(principal_angle_distance(B, problem.B_star))
        training.append(residual.square().mean(dim=(1, 2)) / 2)
        values.append((w @ B.mT - truth).square().sum(-1).mean(1) / 2)
        if round == rounds:
            break
        gradient = inputs.mT @ (residual[..., None] * w[..., None, :]).flatten(1, 2) / (count * batch.m)
        moved = B - method.step * gradient
        gone = watch.look(moved, f"{method.name} ({which})", round + 1, method.step)
        moved = moved if gone is None else torch.where(gone[:, None, None], B, moved)
        B = _upright(moved) if method.orthonormalise else moved
    distance = watch.from_then_on(torch.stack(distances, 1), 1.0)
    loss, value = (watch.from_then_on(torch.stack(each, 1), TOO_LARGE) for each in (training, values))
    return Trajectory(distance, loss, value, B, W, watch.ended)


def smaller_step(problem: Problem, method: Alternation, data: Samples) -> tuple[str, float]:
    """Which of a method's step sizes to change where it diverges, and to what: a name and a number.

    That of the heads where it is above 2 over the largest curvature of a client's loss, which no orthonormal B exceeds;
    the representation's otherwise.
    """
    step = usable_step(problem, method.step)
    if method.head_steps is None:
        return "step", step
    curvature = float(torch.linalg.matrix_norm(data.x, ord=2).square().max()) / data.m
    if method.head_step is None:
        return "step", min(step, 1 / curvature)
    if method.head_step * curvature > 2:
        return "head_step", min(method.head_step / 2, 1 / curvature)
    return "step", step


def _heads(method: Alternation, features: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Heads for these features: exact, or gradient steps from ``w`` on (1/2m)‖features·w − y‖²."""
    if method.head_steps is None:
        return least_squares(features, y)
    size = (method.head_step or method.step) / features.shape[-2]
    gram, target = features.mT @ features, (features.mT @ y[..., None])
    column = w[..., None]
    for _ in range(method.head_steps):
        column = column - size * (gram @ column - target)
    return column[..., 0]


def _upright(matrix: torch.Tensor) -> torch.Tensor:
    """The Q of a QR factorisation whose R has a positive diagonal."""
    q, r = torch.linalg.qr(matrix)
    signs: torch.Tensor = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype)
    upright: torch.Tensor = q * signs[:, None, :]
    return upright
