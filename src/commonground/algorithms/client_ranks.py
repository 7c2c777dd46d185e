"""Clients with factors of different ranks: what FlexLoRA and FLoRA have in common."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from commonground.algorithms.base import Server, Tensors
from commonground.algorithms.federated_lora import FederatedLoRA, factor_pairs
from commonground.errors import ConfigError
from commonground.models import Groups
from commonground.models.lora import LoRALinear

__all__ = ["ClientRanks", "lora_layers"]


@dataclass(frozen=True)
class ClientRanks(FederatedLoRA):
    """Base of the methods whose clients may have factors of different ranks.

    A client of rank k trains the first k rows of A and columns of B. The others are zero in both factors, so that they
    have no gradient and stay zero; they travel as zeros, in uploads of the size of the model's rank.

    Args:
        ranks: ranks of the clients, separated by commas, dealt in turns; by default all have the model's, which is best
            the largest of them.
    """

    ranks: str | int = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(rank < 1 for rank in self.ranks_of_clients):
            raise ConfigError(f"ranks '{self.ranks}' is not a list of ranks such as 2,4,8")

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        rank_option = "model.rank" if "lora_A" in groups else "rank"  # who gave the factors
        super().extend_model(model, groups)
        largest = max(self.ranks_of_clients, default=1)
        for layer in lora_layers(model).values():
            if largest > (rank := len(layer.lora_A)):
                raise ConfigError(f"{self.title}'s largest rank {largest} exceeds the model's {rank} ({rank_option})")
        return model

    def message_to(self, server: Server, client: int) -> Tensors:
        if not self.ranks_of_clients:
            return {}
        rank = self.ranks_of_clients[client % len(self.ranks_of_clients)]
        own: Tensors = {}
        for a_name, b_name in factor_pairs(list(server.shared)):
            own[a_name], own[b_name] = server.shared[a_name].clone(), server.shared[b_name].clone()
            own[a_name][rank:] = 0
            own[b_name][:, rank:] = 0
        return own

    @property
    def ranks_of_clients(self) -> tuple[int, ...]:
        """Ranks that are dealt to the clients in turns; empty if all have the model's."""
        parts = [part.strip() for part in str(self.ranks).split(",") if part.strip()]
        return tuple(int(part) if part.isdigit() else 0 for part in parts)


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """The layers of a model that have factors, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoRALinear)}
