"""A two-layer network whose hidden weight is a product of two low-rank factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from commonground.errors import ModelError

__all__ = ["LowRank"]

Begin = Literal["derivative", "tiny", "zero"]


class LowRank(nn.Module):
    """f(x) = ReLU(x A B) W_out with W_out fixed (Chen et al. 2025, equation 12).

    The factors are held in peft's orientation, the transpose of the paper's: ``lora_A`` [r, d] is its A, ``lora_B``
    [d, r] its B; the hidden layer is as wide as the input. Both are the groups of the federated LoRA methods; ``W_out``
    [d, classes] is a constant that never travels, drawn from N(0, 1/d), for the paper is silent. A is drawn from
    N(0, 1/d) as well: from N(0, 1) the products would be d times as large and the down-projection hardly moves.

    Args:
        shape: one sample's shape, flattened; d is its size.
        classes: c.
        rank: r, the rank of the two factors.
        begin: with B = 0 and ReLU'(0) = 0 every gradient of equation 12 is zero and nothing is ever learnt.
            ``derivative`` (the default) takes ReLU'(0) = 1 and B = 0; ``tiny`` takes ReLU'(0) = 0 and draws B from
            N(0, ``tiny``²); ``zero`` is equation 12 as printed, which stays as it starts.
        tiny: standard deviation of B for ``tiny``.
        a_std: standard deviation of A, by default 1/√d.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        rank: int = 16,
        begin: Begin = "derivative",
        tiny: float = 1e-3,
        a_std: float | None = None,
    ) -> None:
        super().__init__()
        size = prod(shape)
        if not (isinstance(rank, int) and 1 <= rank <= size):
            raise ModelError(f"the rank is {rank!r}; for samples of {size} numbers it must be 1 to {size}")
        if begin not in ("derivative", "tiny", "zero"):
            raise ModelError(f"begin is {begin!r}; it is derivative, tiny or zero")
        self.slope_at_zero = begin == "derivative"
        self.lora_A = nn.Parameter(torch.randn(rank, size) * (size**-0.5 if a_std is None else a_std))
        self.lora_B = nn.Parameter(torch.zeros(size, rank))
        self.W_out: Tensor
        self.register_buffer("W_out", torch.randn(size, classes) * size**-0.5)
        if begin == "tiny":
            nn.init.normal_(self.lora_B, std=tiny)
        self.constants = frozenset(["W_out"])
        self.groups: Mapping[str, Sequence[str]] = {
            "lora_A": ("lora_A",),
            "lora_B": ("lora_B",),
            "body": ("lora_A", "lora_B"),
            "head": (),
        }

    def forward(self, x: Tensor) -> Tensor:
        """Samples [n, …] to logits [n, classes]."""
        before = x.flatten(1) @ self.lora_A.T @ self.lora_B.T
        there = before >= 0 if self.slope_at_zero else before > 0
        logits: Tensor = torch.where(there, before, 0.0) @ self.W_out
        return logits
