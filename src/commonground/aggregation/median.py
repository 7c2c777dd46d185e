"""The median of each number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonground.aggregation.base import Aggregate, Tensors, middle, stacked


@dataclass(frozen=True)
class Median(Aggregate):
    """The coordinate-wise median (Yin et al. 2018, Algorithm 1, option I): right as long as fewer than half are false.

    Of an even number of updates it is the mean of the two in the middle.
    """

    name = "median"
    source = "Yin, Chen, Ramchandran, Bartlett 2018"

    def __call__(self, updates: Sequence[Tensors], weights: Sequence[float], center: Tensors) -> Tensors:
        """See :meth:`Aggregate.__call__`."""
        return {name: middle(stacked(updates, name)) for name in updates[0]}
