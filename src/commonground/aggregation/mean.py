"""The mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commonground.aggregation.base import Aggregate, Tensors


@dataclass(frozen=True)
class Mean(Aggregate):
    """The weighted mean Σ w_i u_i (McMahan et al. 2017): one update can move it anywhere."""

    name = "mean"
    source = "McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017"
    weighs = True

    def __call__(self, updates: Sequence[Tensors], weights: Sequence[float], center: Tensors) -> Tensors:
        """See :meth:`Aggregate.__call__`."""
        mean: Tensors = {}
        # In the order of the updates, so that every engine adds the same numbers in the same order.
        for name, first in updates[0].items():
            mean[name] = first * weights[0]
            for update, weight in zip(updates[1:], weights[1:], strict=True):
                mean[name].add_(update[name], alpha=weight)
        return mean
