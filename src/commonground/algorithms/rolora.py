"""RoLoRA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commonground.algorithms.federated_lora import FederatedLoRA


@dataclass(frozen=True)
class RoLoRA(FederatedLoRA):
    """RoLoRA: the factors are trained and averaged in turns (Chen, Guo, Ju, Dalal, Zhu, Khisti 2025, Algorithm 1).

    In odd communication rounds A is frozen, the same on all clients, and B is trained and averaged; in even rounds the
    other way round (equations 3 and 4). So the average is exact, and only one factor travels: half of LoRA's bytes.
    One iteration of Algorithm 1 is two communication rounds. A head that is trained, is trained in every round.

    Args:
        first: the factor of the first round. The paper's is B; with A first nothing would be learned in the first
            round, since B is zero.
    """

    first: Literal["lora_A", "lora_B"] = "lora_B"

    name = "rolora"
    title = "RoLoRA"
    source = "Chen, Guo, Ju, Dalal, Zhu, Khisti 2025"
    pseudo_gradient = False
    shared = ("lora_A", "lora_B")
    personal = ("head",)

    def trained(self, round: int) -> tuple[str, ...]:
        other = "lora_A" if self.first == "lora_B" else "lora_B"
        return (self.first,) if round % 2 == 1 else (other,)
