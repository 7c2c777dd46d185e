"""What a run of a method leaves behind, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import torch

from commonground.theory.checks import at_least
from commonground.theory.flute.problem import LinearProblem
from commonground.theory.flute.references import best_rank_k, mean_client_error

__all__ = ["Recorder", "Trajectory"]


@dataclass(frozen=True)
class Trajectory:
    """A method's path and end.

    Attributes:
        method: its name.
        rounds: the rounds recorded, from 0 (the start): R numbers.
        error: (1/M) Σ_i ‖Bw_i − φ_i‖, [S, R].
        to_best: ‖BW − Φ_k‖_F, [S, R].
        mean_to_best: (1/M) Σ_i ‖Bw_i − (Φ_k)_i‖, the quantity of eqs. (7) and (8), [S, R].
        loss: the training loss (2), [S, R].
        B: the last representation, [S, d, k].
        W: the last heads, [S, k, M].
        diverged: the round in which a seed's iterate left every range, −1 where it never did, [S]. From that round on
            such a seed's path stays where it last was within range, and means nothing.
    """

    method: str
    rounds: list[int]
    error: torch.Tensor
    to_best: torch.Tensor
    mean_to_best: torch.Tensor
    loss: torch.Tensor
    B: torch.Tensor
    W: torch.Tensor
    diverged: torch.Tensor

    @property
    def finished(self) -> torch.Tensor:
        """Which seeds did not diverge: [S]."""
        return self.diverged < 0

    @classmethod
    def joined(cls, parts: Sequence[Trajectory]) -> Trajectory:
        """The paths of one method over several lists of seeds as one, seeds one after the other."""
        names = [each.name for each in fields(cls) if each.name not in ("method", "rounds")]
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return cls(parts[0].method, parts[0].rounds, **tensors)


@dataclass
class Recorder:
    """Collects a :class:`Trajectory`.

    Args:
        problem: the regressions.
        k: rank.
        every: record every so many rounds (and the last).
    """

    problem: LinearProblem
    k: int
    every: int = 1
    _rounds: list[int] = field(default_factory=list)
    _rows: list[tuple[torch.Tensor, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        at_least("every", self.every, 1, "rounds between two recorded ones")
        self._best = best_rank_k(self.problem.phi, self.k)

    def record(self, round: int, rounds: int, body: torch.Tensor, heads: torch.Tensor) -> None:
        """Note the state after a round (0: the start), where it is due."""
        if round % self.every and round != rounds:
            return
        product = body @ heads
        self._rounds.append(round)
        self._rows.append(
            (
                mean_client_error(product, self.problem.phi),
                torch.linalg.matrix_norm(product - self._best),
                mean_client_error(product, self._best),
                self.problem.loss(product),
            )
        )

    def finish(self, method: str, body: torch.Tensor, heads: torch.Tensor, diverged: torch.Tensor) -> Trajectory:
        """The path recorded."""
        error, to_best, mean_to_best, loss = (torch.stack(column, dim=1) for column in zip(*self._rows, strict=True))
        return Trajectory(method, self._rounds, error, to_best, mean_to_best, loss, body, heads, diverged)
