"""Krum and Multi-Krum: the updates with the nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from commonground.aggregation.base import Aggregate, Tensors, check_false, selected_mean, squared_distances
from commonground.errors import ConfigError

__all__ = ["Krum", "MultiKrum", "krum_scores"]


def krum_scores(distances: Tensor, false: int) -> Tensor:
    """Σ of an update's squared distances to its n − f − 2 nearest others [updates]; the smaller, the more trusted.

    Args:
        distances: squared [updates, updates].
        false: f.
    """
    others = distances.sort(1).values[:, 1:]  # the nearest is the update itself
    return others[:, : max(1, len(distances) - false - 2)].sum(1)


@dataclass(frozen=True)
class Krum(Aggregate):
    """Krum: the one update with the smallest score (Blanchard et al. 2017, §4).

    With n updates of which f may be false, an update's score is the sum of its squared distances to its n − f − 2
    nearest others. It takes 2f + 2 < n.

    Args:
        f: the number of false updates that a round may have.
    """

    f: int

    name = "krum"
    source = "Blanchard, El Mhamdi, Guerraoui, Stainer 2017"

    def least(self) -> int:
        """2f + 3."""
        return 2 * self.f + 3

    def check(self) -> None:
        """See :meth:`Aggregate.check`."""
        check_false(self, self.f)

    def __call__(self, updates: Sequence[Tensors], weights: Sequence[float], center: Tensors) -> Tensors:
        """See :meth:`Aggregate.__call__`."""
        scores = krum_scores(squared_distances(updates), self.f)
        return selected_mean(updates, torch.argsort(scores, stable=True)[:1])


@dataclass(frozen=True)
class MultiKrum(Aggregate):
    """Multi-Krum: the mean of the m updates with the smallest Krum scores (Blanchard et al. 2017, §4).

    Args:
        f: the number of false updates that a round may have.
        m: how many are averaged; at most n − f, so that no more than the true ones are.
    """

    f: int
    m: int

    name = "multi-krum"
    source = "Blanchard, El Mhamdi, Guerraoui, Stainer 2017"

    def least(self) -> int:
        """2f + 3, and m + f."""
        return max(2 * self.f + 3, self.m + self.f)

    def check(self) -> None:
        """See :meth:`Aggregate.check`."""
        check_false(self, self.f)
        if self.m < 1:
            raise ConfigError(f"the number of updates that '{self}' averages must be at least 1")

    def __call__(self, updates: Sequence[Tensors], weights: Sequence[float], center: Tensors) -> Tensors:
        """See :meth:`Aggregate.__call__`."""
        scores = krum_scores(squared_distances(updates), self.f)
        return selected_mean(updates, torch.argsort(scores, stable=True)[: self.m].sort().values)
