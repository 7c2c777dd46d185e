"""FedRep on FLUTE's problem: exact heads, one gradient step on the representation, QR."""

from __future__ import annotations

import torch

from commonground.theory.checks import OnDivergence, Watch, at_least, positive
from commonground.theory.flute.problem import LinearProblem
from commonground.theory.flute.trajectory import Recorder, Trajectory
from commonground.theory.subspace import orthonormal

__all__ = ["exact_heads", "fedrep", "moment_start", "step_limit"]


def moment_start(problem: LinearProblem, k: int) -> torch.Tensor:
    """FedRep's start by the method of moments: the k leading eigenvectors of (1/(MN)) Σ y²xxᵀ, [S, d, k].

    FLUTE's §7.1 calls it the "empirical covariance estimated from the local datasets"; it is the start of Collins et
    al. 2021, §4.1 (their Z_i), from the same samples that FedRep then trains on.
    """
    problem.check_rank(k)
    vectors: torch.Tensor = torch.linalg.eigh(problem.moment)[1]  # in ascending order
    return vectors[:, :, -k:].flip(2)


def exact_heads(problem: LinearProblem, B: torch.Tensor) -> torch.Tensor:
    """Every client's least-squares head for a given representation, [S, k, M].

    Solved through the normal equations BᵀS_iB w = Bᵀc_i (B has orthonormal columns, and a k × k system per client and
    round is what keeps a figure within seconds). Where these have no unique solution (N < k, or a singular system) the
    head of least norm is taken (pseudo-inverse).

    Args:
        problem: the regressions.
        B: [S, d, k].
    """
    if problem.covariance is None:
        product: torch.Tensor = torch.linalg.lstsq(B, problem.phi).solution
        return product
    seeds, clients, d, _ = problem.covariance.shape
    k = B.shape[2]
    # BᵀS_iB by two large products per seed, several times faster than by M small ones
    applied = (problem.covariance.reshape(seeds, clients * d, d) @ B).reshape(seeds, clients, d, k)
    projected = (B.mT @ applied.transpose(1, 2).reshape(seeds, d, clients * k)).reshape(seeds, k, clients, k)
    projected = projected.transpose(1, 2)  # [S, M, k, k]
    right = (problem.cross @ B).unsqueeze(3)  # [S, M, k, 1]
    if problem.samples is not None and problem.samples >= k:
        factor, failed = torch.linalg.cholesky_ex(projected)
        if not bool(failed.any()):
            return torch.cholesky_solve(right, factor).squeeze(3).mT
    inverse: torch.Tensor = torch.linalg.pinv(projected, rtol=1e-10, hermitian=True)
    return (inverse @ right).squeeze(3).mT


def step_limit(problem: LinearProblem) -> torch.Tensor:
    """FedRep's own limit 1/(4σ̄²_max), σ̄²_max = λ_1²/M (Collins et al. 2021, Theorem 1, r = 1), for its ½-loss: [S].

    Half of it is the limit for η of :func:`fedrep`, whose loss is not halved.

    It needs the true Φ and serves to compare step sizes with.
    """
    largest = torch.linalg.matrix_norm(problem.phi, ord=2)
    limit: torch.Tensor = problem.clients / (4 * largest.square())
    return limit


def fedrep(
    problem: LinearProblem,
    k: int,
    rounds: int,
    step: float,
    start: torch.Tensor,
    *,
    every: int = 1,
    on_divergence: OnDivergence = "raise",
) -> Trajectory:
    """Run FedRep for linear regression (Collins et al. 2021, Algorithm 2) with all clients on their fixed samples.

    FLUTE's paper does not say how it ran FedRep. We take its Algorithm 2: per round every client solves for its head,
    takes one gradient step on B, the server averages the B and orthonormalises (QR). The step uses FLUTE's loss (2)
    with its factor 2, so that one number η means the same gradient for both:
    B ← QR(B − (2η/M) Σ_i (S_iBw_i − c_i)w_iᵀ). Its average over clients (FLUTE adds) is part of the algorithm; with the
    sum, η = 0.03 would exceed what a step on an orthonormal B bears (2ηλ_1² > 2) on the paper's problems, and with the
    mean it is about its theory's own limit there, see :func:`step_limit`. A round's state is the new B with heads
    solved for it (the model every client would use), so that round 0 shows the start with its own heads.

    Args:
        problem: the regressions.
        k: rank.
        rounds: T.
        step: η.
        start: B⁰, [S, d, k]; orthonormalised first (a small random B⁰ would otherwise get heads of size 1/α). FedRep
            has :func:`moment_start`; FedRep(RI) FLUTE's random B⁰.
        every: record every so many rounds.
        on_divergence: as in :func:`~commonground.theory.flute.method.flute`.

    Raises:
        ConfigError: k is impossible, or a number is out of range.
        DivergenceError: a gradient step leaves every range (QR hides smaller excesses: then the error does not fall).
    """
    problem.check_rank(k)
    at_least("rounds", rounds, 0)
    positive("step", step, "learning rate")
    B = orthonormal(start)
    W = exact_heads(problem, B)
    recorder = Recorder(problem, k, every)
    recorder.record(0, rounds, B, W)
    watch = Watch(
        problem.seeds,
        problem.device,
        on_divergence,
        lambda: f"step={min(step / 2, float(step_limit(problem).min()) / 2):.3g}",
    )
    for round in range(1, rounds + 1):
        moved = B - 2 * step / problem.clients * problem.residual(B @ W) @ W.mT
        gone = watch.look(moved, "FedRep", round, step)
        B = orthonormal(moved if gone is None else torch.where(gone[:, None, None], B, moved))
        W = exact_heads(problem, B)
        recorder.record(round, rounds, B, W)
    return recorder.finish("FedRep", B, W, watch.ended)
