"""Clients with factors of different ranks: what FlexLoRA and FLoRA have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from commonground.algorithms.base import Server, Update
from commonground.algorithms.federated_lora import FederatedLoRA
from commonground.errors import ConfigError
from commonground.models import Groups
from commonground.models.lora import LoRALinear, Start

__all__ = ["ClientRanks", "lora_layers"]


@dataclass(frozen=True)
class ClientRanks(FederatedLoRA):
    """Base of the methods whose clients may have factors of different ranks.

    A client of rank k holds the first k rows of A and columns of B, and nothing else travels to it or from it. The
    others are zero in both factors for it, so that they have no gradient and stay zero.

    Args:
        ranks: ranks of the clients, separated by commas, dealt in turns; by default all have the model's, which is best
            the largest of them.
    """

    start: ClassVar[Start] = "kaiming"  # how the model draws A, in which a new one has to be drawn too

    ranks: str | int = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(rank < 1 for rank in self.ranks_of_clients):
            raise ConfigError(f"ranks '{self.ranks}' is not a list of ranks such as 2,4,8")

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        rank_option = "model.rank" if "lora_A" in groups else "rank"  # who gave the factors
        super().extend_model(model, groups)
        largest = max(self.ranks_of_clients, default=1)
        layers = list(lora_layers(model).values())
        if layers:  # all of a model are drawn alike
            object.__setattr__(self, "start", layers[0].start)
        for layer in layers:
            if largest > (rank := len(layer.lora_A)):
                raise ConfigError(f"{self.title}'s largest rank {largest} exceeds the model's {rank} ({rank_option})")
        return model

    def held_part(self, name: str, client: int) -> tuple[slice, ...]:
        if not self.ranks_of_clients:
            return ()
        rank = slice(self.ranks_of_clients[client % len(self.ranks_of_clients)])
        parts = {"lora_A": (rank,), "lora_B": (slice(None), rank)}
        return parts.get(name.rpartition(".")[2], ())

    def stacked_factors(
        self, server: Server, updates: Sequence[Update], a_name: str, b_name: str
    ) -> tuple[Tensor, Tensor]:
        """Of a layer, the clients' A below and their B, times their weights, beside one another, each of its client's
        rank: Σ wᵢBᵢAᵢ is the product of the two.

        Returns:
            A [Σ kᵢ, in] and B [out, Σ kᵢ].
        """
        weights = server.weights(updates)
        a = [u.tensors[a_name][self.held_part(a_name, u.client)] for u in updates]
        b = [w * u.tensors[b_name][self.held_part(b_name, u.client)] for w, u in zip(weights, updates, strict=True)]
        return torch.cat(a), torch.cat(b, dim=1)

    @property
    def ranks_of_clients(self) -> tuple[int, ...]:
        """Ranks that are dealt to the clients in turns; empty if all have the model's."""
        parts = [part.strip() for part in str(self.ranks).split(",") if part.strip()]
        return tuple(int(part) if part.isdigit() else 0 for part in parts)


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """The layers of a model that have factors, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoRALinear)}
