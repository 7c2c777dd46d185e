"""Bulyan: Krum's selection, then a trimmed mean around the median."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from commonground.aggregation.base import Aggregate, Tensors, check_false, middle, squared_distances, stacked
from commonground.aggregation.krum import krum_scores


@dataclass(frozen=True)
class Bulyan(Aggregate):
    """Bulyan of Krum (El Mhamdi et al. 2018, §4).

    θ = n − 2f updates are selected one after the other, each by Krum among those that are left; of each number the
    θ − 2f values nearest to the selected ones' median are averaged. It takes 4f + 3 ≤ n, and bounds what a false update
    does to a single number, which Krum does not.

    Args:
        f: the number of false updates that a round may have.
    """

    f: int

    name = "bulyan"
    source = "El Mhamdi, Guerraoui, Rouault 2018"

    def least(self) -> int:
        """4f + 3."""
        return 4 * self.f + 3

    def check(self) -> None:
        """See :meth:`Aggregate.check`."""
        check_false(self, self.f)

    def __call__(self, updates: Sequence[Tensors], weights: Sequence[float], center: Tensors) -> Tensors:
        """See :meth:`Aggregate.__call__`."""
        chosen = self._selected(squared_distances(updates))
        kept = len(updates) - 4 * self.f
        found = {}
        for name in updates[0]:
            values = stacked(updates, name).index_select(0, chosen)
            nearest = (values - middle(values)).abs().sort(dim=0, stable=True).indices[:kept]
            found[name] = values.gather(0, nearest).mean(0)
        return found

    def _selected(self, distances: Tensor) -> Tensor:
        """Places of the n − 2f updates that Krum takes one by one, ascending."""
        left = torch.arange(len(distances), device=distances.device)
        chosen = []
        for _ in range(len(distances) - 2 * self.f):
            among = distances.index_select(0, left).index_select(1, left)
            # With fewer left than f + 3 each is judged by its nearest neighbour; the last is taken as it is.
            best = krum_scores(among, self.f).argmin() if len(left) > 1 else torch.zeros_like(left[0])
            chosen.append(left[best])
            places = torch.arange(len(left) - 1, device=left.device)
            left = left.index_select(0, places + (places >= best).long())
        return torch.stack(chosen).sort().values
