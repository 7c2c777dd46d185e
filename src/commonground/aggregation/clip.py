"""The mean of changes cut to a length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from commonground.aggregation.base import Aggregate, Tensors
from commonground.aggregation.mean import Mean
from commonground.devices import wide
from commonground.errors import ConfigError


@dataclass(frozen=True)
class Clip(Aggregate):
    """The mean of changes Δ_i = u_i − x that are cut to the length C: x + Σ w_i Δ_i · min(1, C/‖Δ_i‖) (Sun et al. 2019,
    norm thresholding; McMahan et al. 2018). ‖·‖ is over all tensors of an update. No update moves the mean by more
    than w_i C.

    Args:
        c: C, positive.
    """

    c: float

    name = "clip"
    source = "Sun, Kairouz, Suresh, McMahan 2019"
    weighs = True

    def check(self) -> None:
        """See :meth:`Aggregate.check`."""
        if not (self.c > 0 and math.isfinite(self.c)):
            raise ConfigError(f"the length of 'clip:{self.c:g}' must be a positive number")

    def __call__(self, updates: Sequence[Tensors], weights: Sequence[float], center: Tensors) -> Tensors:
        """See :meth:`Aggregate.__call__`."""
        start = {name: center.get(name, torch.zeros_like(value)) for name, value in updates[0].items()}
        changes = [{name: value - start[name] for name, value in update.items()} for update in updates]
        cut = []
        for change in changes:
            # In double precision: the square of 1e30 is beyond float32.
            length = torch.stack([wide(value).square().sum() for value in change.values()]).sum().sqrt()
            share = (self.c / length.clamp(min=self.c)).clamp(max=1.0)
            cut.append({name: (wide(value) * share).to(value.dtype) for name, value in change.items()})
        return {name: start[name] + value for name, value in Mean()(cut, weights, start).items()}
