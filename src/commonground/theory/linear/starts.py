"""Where the representation starts: method of moments, projected gradient, or at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from commonground.errors import ConfigError
from commonground.theory.checks import Watch, at_least, positive
from commonground.theory.draws import normal
from commonground.theory.linear.problem import Problem, Samples, draw_samples
from commonground.theory.subspace import orthonormal

__all__ = [
    "Start",
    "StartName",
    "gaussian_start",
    "make_start",
    "method_of_moments",
    "projected_gradient",
    "random_start",
]

StartName = Literal["projected-gradient", "moments", "moments-fresh", "random", "gaussian"]


@dataclass(frozen=True)
class Start:
    """First iterates.

    Attributes:
        B: [S, d, k], orthonormal but for the Gaussian start.
        W: [S, n, k]; only methods that take gradient steps on the heads look at it.
    """

    B: torch.Tensor
    W: torch.Tensor


def make_start(name: StartName, problem: Problem, data: Samples) -> Start:
    """A start by name.

    ``projected-gradient`` is that of the paper's figures, ``moments`` that of Algorithm 2 from the training samples
    ``data``, ``moments-fresh`` the same from as many samples drawn for it alone (as the theory has it), ``random`` a
    random orthonormal one, ``gaussian`` the Gaussian samples of Appendix A.1's last remark, as they are drawn.
    """
    if name == "projected-gradient":
        return projected_gradient(problem, data)
    if name == "moments":
        return method_of_moments(problem, data)
    if name == "moments-fresh":
        return method_of_moments(problem, draw_samples(problem, data.m, "start"))
    if name == "random":
        return random_start(problem)
    if name == "gaussian":
        return gaussian_start(problem)
    raise ConfigError(f"start is '{name}'; known are projected-gradient, moments, moments-fresh, random and gaussian")


def method_of_moments(problem: Problem, samples: Samples) -> Start:
    """Algorithm 2's start: the top k eigenvectors of (1/n) Σ_i Z_i, with Z_i = (1/m) Σ_j y_ij² x_ij x_ijᵀ.

    For Gaussian x the mean of Z_i is 2 θ_i θ_iᵀ + (‖θ_i‖² + σ²) I, whose top k eigenvectors span B*. The method names
    no heads (FedRep needs none); for the others they start at zero.

    Args:
        problem: tells k.
        samples: of all clients.
    """
    x, y = samples.x.flatten(1, 2), samples.y.flatten(1, 2)
    moments = (x * y.square()[..., None]).mT @ x / x.shape[1]
    _, vectors = torch.linalg.eigh(moments)  # eigenvalues ascend
    return Start(vectors[..., -problem.k :].contiguous(), torch.zeros_like(problem.W_star))


def projected_gradient(problem: Problem, samples: Samples, rounds: int = 10, step: float | None = None) -> Start:
    """The figures' start (Appendix A.1): Tu et al. 2016, Algorithm 1's initialisation, on the unfactorised objective.

    From M = 0, ``rounds`` times: a gradient step on (1/2m) Σ_ij (y_ij − ⟨m_i, x_ij⟩)² over M in R^{n×d}, then the
    nearest matrix of rank k. With M = U Σ Vᵀ at the end, B = V (orthonormal, as FedRep's iterates are) and W = U Σ, so
    that W Bᵀ = M; Tu et al. put √Σ on either side, which a QR of B would undo.

    Args:
        problem: tells k.
        samples: of all clients; all take part in the start, whatever r is later (the paper does not say).
        rounds: 10 in the paper.
        step: None for m/(m + d + 1). Tu et al. take 1, for measurements with the restricted isometry property, which
            these have not (Section 4.2): a client's own m < d samples stretch some directions by (1 + √(d/m))². For
            Gaussian x, E‖(I − a XᵀX/m) v‖² is least at a = m/(m + d + 1), which tends to Tu et al.'s 1 as m grows. A
            client whose samples stretch a direction by more than 2/a still diverges, in a few of a hundred seeds at
            d = 10 and m = 5, in most at d = 4 with 500 clients: a seed in which the objective ends above that of M = 0
            is begun again with half the step, until it does not.

    Raises:
        DivergenceError: the step that was given is too large.
    """
    at_least("start_rounds", rounds, 1, "rounds of projected gradient")
    x, y, k = samples.x, samples.y, problem.k
    if step is not None:
        positive("start_step", step)
        instead = f"start_step={step / 2:.3g}"
        return _descended(x, y, k, rounds, step, Watch(problem.seeds, x.device, "raise", lambda: instead))[0]
    step = samples.m / (samples.m + problem.d + 1)
    start, left = _descended(x, y, k, rounds, step, Watch(problem.seeds, x.device, "record"))
    while bool((again := left > y.square().sum((1, 2))).any()):
        step /= 2
        watch = Watch(range(int(again.sum())), x.device, "record")
        anew, left[again] = _descended(x[again], y[again], k, rounds, step, watch)
        start.B[again], start.W[again] = anew.B, anew.W
    return start


def _descended(
    x: torch.Tensor, y: torch.Tensor, k: int, rounds: int, step: float, watch: Watch
) -> tuple[Start, torch.Tensor]:
    """The start with one step for all seeds, and [S] what Σ_ij (y_ij − ⟨m_i, x_ij⟩)² is then, infinite of a seed that
    has diverged.
    """
    m, d = x.shape[-2:]
    M = x.new_zeros(*x.shape[:2], d)
    U, sizes, Vh = torch.linalg.svd(M, full_matrices=False)
    for round in range(1, rounds + 1):
        residual = (x @ M[..., None])[..., 0] - y
        M = M - step / m * (residual[..., None, :] @ x)[..., 0, :]
        if (gone := watch.look(M, "the projected-gradient start", round, step, k**0.5)) is not None:
            M[gone] = 0.0  # an SVD of what is not finite ends all seeds
        U, sizes, Vh = torch.linalg.svd(M, full_matrices=False)
        U, sizes, Vh = U[..., :k], sizes[..., :k], Vh[..., :k, :]
        M = (U * sizes[:, None, :]) @ Vh
    left = ((x @ M[..., None])[..., 0] - y).square().sum((1, 2))
    return Start(Vh.mT.contiguous(), U * sizes[:, None, :]), left.masked_fill(watch.gone, torch.inf)


def random_start(problem: Problem) -> Start:
    """The Gaussian start's B orthonormalised, its heads as they are (about as long as the true ones)."""
    start = gaussian_start(problem)
    return Start(orthonormal(start.B), start.W)


def gaussian_start(problem: Problem) -> Start:
    """B and heads of independent standard normal entries ("random Gaussian samples", Collins et al. 2021, A.1).

    B's columns have the squared length d in the mean, so that a head's curvature is about d times that on an
    orthonormal B, and so is the limit of its gradient steps smaller. FedRep's first round makes B orthonormal; a method
    without QR has to cope with it.
    """
    B = normal(problem.seeds, "linear start B", problem.d, problem.k, device=problem.device)
    return Start(B, normal(problem.seeds, "linear start W", problem.n, problem.k, device=problem.device))
