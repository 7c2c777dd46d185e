"""Refusing dimensions that make no sense, and telling divergence by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import index
from typing import Literal

import torch

from commonground.errors import ConfigError, DivergenceError

__all__ = ["OnDivergence", "Watch", "at_least", "between", "diverged", "positive", "raise_if_diverged", "whole"]

OnDivergence = Literal["raise", "most", "record"]
"""What a seed that diverges does: it ends the study, it ends it if most seeds do, or it is noted and left out."""

TOO_LARGE = 1e12  # an iterate so many times as large as it should be does not come back


def at_least(name: str, value: float, least: float, why: str = "") -> None:
    """Refuse a value below the least possible one: ``m is 0; it must be at least 1 (samples per client)``."""
    if not value >= least:
        raise ConfigError(f"{name} is {value:g}; it must be at least {least:g}{f' ({why})' if why else ''}")


def whole(name: str, value: int, least: int, why: str = "") -> None:
    """Refuse what is no whole number, and one below the least: ``d is 2.5; it must be a whole number``."""
    try:
        at_least(name, index(value), least, why)
    except TypeError:
        said = f"{name} is {value!r}; it must be a whole number{f' ({why})' if why else ''}"
        raise ConfigError(said) from None


def between(name: str, value: float, low: float, high: float, why: str = "") -> None:
    """Refuse a value outside [low, high]."""
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value:g}; it must lie in [{low:g}, {high:g}]{f' ({why})' if why else ''}")


def positive(name: str, value: float, why: str = "") -> None:
    """Refuse zero, negative and infinite values."""
    if not (0 < value < math.inf):
        raise ConfigError(f"{name} is {value:g}; it must be positive and finite{f' ({why})' if why else ''}")


def diverged(iterate: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Which seeds' iterates have left every reasonable range.

    Args:
        iterate: [S, ...].
        scale: size it should have.

    Returns:
        [S], true where an entry is not finite or exceeds 1e12 ``scale``.
    """
    flat = iterate.reshape(iterate.shape[0], -1)
    return ~(flat.abs() < TOO_LARGE * scale).all(dim=1)


def raise_if_diverged(
    iterate: torch.Tensor,
    method: str,
    round: int,
    seeds: Sequence[int],
    step: float,
    scale: float = 1.0,
    setting: str = "step",
) -> None:
    """End a study whose step size is too large.

    Raises:
        DivergenceError: naming method, round, the first seed concerned, the step size and the setting that is it.
    """
    bad = diverged(iterate, scale)
    if bool(bad.any()):
        raise _too_large(bad, method, round, seeds, step, f"{setting}={step / 2:.3g}")


def _too_large(
    bad: torch.Tensor, method: str, round: int, seeds: Sequence[int], step: float, instead: str
) -> DivergenceError:
    seed = seeds[int(bad.int().argmax())]
    return DivergenceError(
        f"{method} diverges: its iterate is no longer finite or below {TOO_LARGE:g} in round {round} (seed {seed}, "
        f"step size {step:g}); use a smaller step size, such as {instead}"
    )


class Watch:
    """Looks at iterates round by round and notes which seeds have diverged.

    Args:
        seeds: S of them.
        device: where the iterates are.
        on_divergence: see :data:`OnDivergence`.
        instead: gives the setting that helps, such as ``step=0.125``; half the step size if None.

    Attributes:
        ended: [S], int64: the round in which a seed's iterate left every range, −1 where it never did.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        device: torch.device,
        on_divergence: OnDivergence,
        instead: Callable[[], str] | None = None,
    ) -> None:
        self.seeds, self.on_divergence, self.instead = seeds, on_divergence, instead
        self.ended = torch.full((len(seeds),), -1, dtype=torch.int64, device=device)

    def look(
        self, iterate: torch.Tensor, method: str, round: int, step: float, scale: float = 1.0
    ) -> torch.Tensor | None:
        """Look at an iterate [S, ...].

        Returns:
            [S], true for seeds that have diverged by now, whose iterate is to be put back; None if there are none.

        Raises:
            DivergenceError: see :data:`OnDivergence`.
        """
        bad = diverged(iterate, scale)
        if bool(bad.any()):
            self.ended = torch.where(bad & (self.ended < 0), round, self.ended)
            most = 2 * int(self.gone.sum()) > len(self.seeds)
            if self.on_divergence == "raise" or (self.on_divergence == "most" and most):
                instead = self.instead() if self.instead else f"step={step / 2:.3g}"
                raise _too_large(bad, method, round, self.seeds, step, instead)
        gone = self.gone
        return gone if bool(gone.any()) else None

    @property
    def gone(self) -> torch.Tensor:
        """Which seeds have diverged: [S]."""
        return self.ended >= 0

    def from_then_on(self, values: torch.Tensor, value: float) -> torch.Tensor:
        """Put a value in the place of what a seed went through since it diverged.

        Args:
            values: [S, T + 1], by round.
            value: what stands for it.
        """
        rounds = torch.arange(values.shape[1], device=values.device)
        after = self.gone[:, None] & (rounds >= self.ended[:, None])
        return values.masked_fill(after, value)
