"""Whose turn it is inside of loops over batches: of clients side by side some have no batch any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Turns"]


@dataclass(frozen=True, eq=False)
class _Turn:
    """An open iterator's present step: which clients have a batch, on the device (None: all) and on the host."""

    active: Tensor | None
    there: npt.NDArray[np.bool_]


class Turns:
    """The present steps of all open iterators, within one another (loops) or side by side (``zip``): the code that runs
    is for the clients that have a batch of each.

    Args:
        clients: how many there are.

    Attributes:
        active: [C] these clients on the device; None if they are all.
        there: [C] the same on the host.
    """

    def __init__(self, clients: int) -> None:
        self._everyone = np.ones(clients, dtype=bool)
        self._open: list[_Turn] = []
        self._gather()

    @contextmanager
    def taken(self, active: Tensor | None, there: npt.NDArray[np.bool_]) -> Iterator[None]:
        """While open, only these clients' turn counts; whichever other iterators come and go meanwhile."""
        turn = _Turn(active, there)
        self._open.append(turn)
        self._gather()
        try:
            yield
        finally:
            self._open.remove(turn)
            self._gather()

    def _gather(self) -> None:
        masks = [turn.active for turn in self._open if turn.active is not None]
        self.active = torch.stack(masks).all(0) if len(masks) > 1 else masks[0] if masks else None
        self.there = np.logical_and.reduce([self._everyone, *(turn.there for turn in self._open)])
