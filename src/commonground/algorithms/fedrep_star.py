"""FedRep*."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from commonground.algorithms.fedrep import FedRep


@dataclass(frozen=True)
class FedRepStar(FedRep):
    """FedRep*: ten epochs on the head, then those on the body (Liu et al. 2024, §7.2).

    On CIFAR-10 one epoch on the body, on CIFAR-100 five (``--local-epochs 5``). It is FedRep as its own paper runs it
    (Collins et al. 2021, §5); what Liu et al. call FedRep has as many head as body epochs, 1 on CIFAR-10
    (``fedrep --set head_epochs=1``) and 5 on CIFAR-100.
    """

    head_epochs: Annotated[int, Field(ge=0)] = 10

    name = "fedrep-star"
    title = "FedRep*"
    source = "Liu, Shen, Yang 2024"
