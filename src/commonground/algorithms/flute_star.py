"""FLUTE*."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from commonground.algorithms.flute import FLUTE


@dataclass(frozen=True)
class FLUTEStar(FLUTE):
    """FLUTE*: FLUTE with ten more epochs on the head alone (Liu et al. 2024, §7.2).

    On CIFAR-10 one epoch on body and head, then 10 on the head; on CIFAR-100 five (``--local-epochs 5``), then 10. The
    authors' code takes the 10 first: ``head_first``. Settings are those of FLUTE.
    """

    head_epochs: Annotated[int, Field(ge=0)] = 10

    name = "flute-star"
    title = "FLUTE*"
