"""The median of each number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from commonground.aggregation.base import Aggregate, stacked


@dataclass(frozen=True)
class Median(Aggregate):
    """The coordinate-wise median (Yin et al. 2018, Algorithm 1, option I): right as long as fewer than half are false.

    Of an even number of updates it is the mean of the two in the middle.
    """

    name = "median"
    source = "Yin, Chen, Ramchandran, Bartlett 2018"

    def __call__(
        self, updates: Sequence[dict[str, Tensor]], weights: Sequence[float], center: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """See :meth:`Aggregate.__call__`."""
        low, high = (len(updates) - 1) // 2, len(updates) // 2
        found = {}
        for name in updates[0]:
            ordered = stacked(updates, name).sort(0).values
            # Halves first: the sum of two large numbers may overflow where their mean does not.
            found[name] = ordered[low] / 2 + ordered[high] / 2
        return found
