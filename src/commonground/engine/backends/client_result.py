"""What comes of one client's round, in any engine."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from commonground.algorithms import Tensors, Update

__all__ = ["ClientResult"]


@dataclass(frozen=True)
class ClientResult:
    """What comes of one client's round.

    Attributes:
        update: what it sent.
        loss: its mean training loss, perhaps still on its way from the device (``settle`` in ``checks.py`` waits for
            it); None if it did not train.
        personal: its new personal tensors and state, where the engine keeps them centrally (simulation); of ``ray``
            only the smallest and the largest value of each, by which it is seen whether all are finite.
    """

    update: Update
    loss: float | Tensor | None
    personal: Tensors | None = None
