"""Runs of gradient descent with global updates (2), with local updates (3), and one-shot averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from commonground.theory.checks import at_least, positive, raise_if_diverged
from commonground.theory.features.errors import directions, population_test_error, training_error
from commonground.theory.features.full import FullState, full_start
from commonground.theory.features.problem import Problem
from commonground.theory.features.reduced import ReducedState, reduced_start
from commonground.theory.threads import one_thread

__all__ = ["Dynamics", "State", "Trajectory", "Updates", "descend", "error_of", "recorded_rounds"]

Updates = Literal["global", "local"]
Dynamics = Literal["reduced", "full"]
State = ReducedState | FullState

LOOK_EVERY = 50  # steps between two looks for divergence; an overflow in between shows as NaN at the next look


@dataclass(frozen=True)
class Trajectory:
    """What a run passed through, at R recorded rounds.

    Attributes:
        updates: ``global`` (A = 1 model) or ``local`` (A = N models).
        rounds: the R rounds; 0 is the start.
        gamma: Γ, [S, R, A, m, K].
        xi: Ξ, [S, R, N, m, n].
        margin: y·F on the training samples, [S, R, N, n].
        test_error: [S, R, N], or None if it was not asked for.
        final: the last state, to be averaged or carried on.
    """

    updates: Updates
    rounds: list[int]
    gamma: torch.Tensor
    xi: torch.Tensor
    margin: torch.Tensor
    test_error: torch.Tensor | None
    final: State

    @property
    def training_error(self) -> torch.Tensor:
        """[S, R, N]."""
        return training_error(self.margin)


@one_thread()
def descend(
    problem: Problem,
    updates: Updates,
    eta: float,
    rounds: int,
    *,
    record: Sequence[int] | None = None,
    dynamics: Dynamics = "reduced",
    units: int = 0,
) -> Trajectory:
    """Full-batch gradient descent from the common start.

    Args:
        problem: data and start.
        updates: ``global``: one model and the mean of the clients' gradients in every round, equation (2);
            ``local``: every client on its own, equation (3), where a round is a local step.
        eta: η.
        rounds: T.
        record: rounds to record, by default the first and the last.
        dynamics: ``reduced``, or ``full``, which moves the weights themselves and gives the same numbers.
        units: directions for ``population_test_error`` at the recorded rounds; 0: no test error.

    Raises:
        ConfigError: a number makes no sense.
        DivergenceError: the step size is too large.
    """
    positive("eta", eta)
    at_least("rounds", rounds, 0)
    local = updates == "local"
    state: State = (reduced_start if dynamics == "reduced" else full_start)(problem, local)
    wanted = sorted({r for r in ([0, rounds] if record is None else record) if 0 <= r <= rounds})
    wanted_set = set(wanted)
    draws = directions(problem.seeds, problem.model.m, units, problem.device) if units else None
    kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    errors = []
    name = f"gradient descent with {updates} updates"
    for t in range(rounds + 1):
        if t:
            state = state.step(eta)
        if t in wanted_set or t % LOOK_EVERY == 0 or t == rounds:
            both = torch.cat([state.gamma.flatten(1), state.xi.flatten(1)], 1)
            raise_if_diverged(both, name, t, problem.seeds, eta, setting="eta")
        if t in wanted_set:
            kept.append((state.gamma, state.xi, state.margin))
            if draws is not None:
                errors.append(population_test_error(problem.model, state.gamma, state.noise_gram, draws))
    gamma, xi, margin = (torch.stack(parts, 1) for parts in zip(*kept, strict=True))
    return Trajectory(updates, wanted, gamma, xi, margin, torch.stack(errors, 1) if errors else None, state)


def error_of(problem: Problem, state: State, units: int) -> torch.Tensor:
    """Test error of a state, for example of an average: [S, N]."""
    draws = directions(problem.seeds, problem.model.m, units, problem.device)
    return population_test_error(problem.model, state.gamma, state.noise_gram, draws)


def recorded_rounds(rounds: int, points: int) -> list[int]:
    """About ``points`` rounds from 0 to ``rounds``, evenly spread, both ends included."""
    at_least("points", points, 2, "start and end")
    return sorted({round(i * rounds / (points - 1)) for i in range(points)})
