"""The mean of each number without its extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from commonground.aggregation.base import Aggregate, Tensors, stacked
from commonground.errors import ConfigError

_LEAST = 1e-9  # a share of which nobody has enough clients


@dataclass(frozen=True)
class TrimmedMean(Aggregate):
    """The coordinate-wise β-trimmed mean (Yin et al. 2018, Definition 2): of n values the ⌊βn⌋ smallest and the ⌊βn⌋
    largest are left out, and the others averaged. It bears a share β of false updates.

    Args:
        beta: β, at least 0 and less than 1/2.
    """

    beta: float

    name = "trimmed"
    source = "Yin, Chen, Ramchandran, Bartlett 2018"

    def check(self) -> None:
        """See :meth:`Aggregate.check`."""
        if not 0 <= self.beta < 0.5:
            raise ConfigError(f"the share that 'trimmed:{self.beta:g}' leaves out must be at least 0 and less than 0.5")
        if 0 < self.beta < _LEAST:
            raise ConfigError(
                f"'trimmed:{self.beta:g}' leaves out no update of any number of clients; take a larger share"
            )

    def least(self) -> int:
        """See :meth:`Aggregate.least`: of fewer none would be left out, and no false update borne."""
        return math.ceil(round(1 / self.beta, 9)) if self.beta else 1

    def __call__(self, updates: Sequence[Tensors], weights: Sequence[float], center: Tensors) -> Tensors:
        """See :meth:`Aggregate.__call__`."""
        # 0.29 · 100 is 28.999…: rounded before it is cut down.
        cut = int(round(self.beta * len(updates), 9))
        return {name: stacked(updates, name).sort(0).values[cut : len(updates) - cut].mean(0) for name in updates[0]}
