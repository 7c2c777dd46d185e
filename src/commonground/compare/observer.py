"""What hears of a comparison while it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from commonground.compare.methods import shown
from commonground.engine import Observer

__all__ = ["ComparisonObserver", "SilentComparison", "Step"]


@dataclass(frozen=True)
class Step:
    """One run of a comparison.

    Attributes:
        number, total: which of all runs, counted from 1.
        title: of the method.
        seed: of the run.
        rounds: it has.
        candidate: settings tried out on validation data; None for a run that counts.
    """

    number: int
    total: int
    title: str
    seed: int
    rounds: int
    candidate: Mapping[str, Any] | None = field(default=None)

    @property
    def text(self) -> str:
        """For example ``[3/12] FedRep, seed 1``."""
        tried = "" if self.candidate is None else shown(self.candidate)
        return f"[{self.number}/{self.total}] {self.title}, seed {self.seed}" + (f", tuning {tried}" if tried else "")


class ComparisonObserver(Protocol):
    """What the display of a comparison hears."""

    def plan(self, steps: Sequence[Step]) -> None:
        """All runs, in their order; once more without those of a method that is left out."""

    def step(self, step: Step) -> Observer | None:
        """A run starts; returns who hears of its rounds."""

    def note(self, text: str) -> None:
        """Something worth one line."""


class SilentComparison:
    """Shows nothing."""

    def plan(self, steps: Sequence[Step]) -> None:
        """See :class:`ComparisonObserver`."""

    def step(self, step: Step) -> Observer | None:
        """See :class:`ComparisonObserver`."""
        return None

    def note(self, text: str) -> None:
        """See :class:`ComparisonObserver`."""
