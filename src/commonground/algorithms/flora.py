"""FLoRA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from commonground.algorithms.base import Server, Tensors, Update
from commonground.algorithms.client_ranks import ClientRanks, lora_layers
from commonground.algorithms.federated_lora import factor_pairs
from commonground.algorithms.flora_stacks import fresh_factor, spared, stack_name, worked_out, worth_keeping
from commonground.errors import ModelError
from commonground.models import Groups, groups_of, set_groups


@dataclass(frozen=True)
class FLoRA(ClientRanks):
    """FLoRA: factors are stacked, so that the sum of products is exact, and merged into the model (Wang et al. 2024).

    Stacking the clients' Aᵢ below and their wᵢBᵢ beside one another gives Σ wᵢBᵢAᵢ without an average of factors. The
    sum is added to the frozen weights, and every client starts its next round from fresh factors (A drawn anew, as
    the first was; B zero). Clients may have factors of different ranks.

    What goes down is one of two, with the same numbers:

    - ``dense`` (the default): the sum of all rounds so far as one matrix for each adapted layer, which any client can
      use whatever rounds it missed, and the fresh factors;
    - ``stack``: the paper's protocol. A client keeps the sum and is sent the stacked factors, N·r rows each (or as many
      as the clients' ranks add up to), of every round since its last one; fresh factors it draws by the same key as the
      server. Where that is more than the dense matrices are (many clients, or many missed rounds), it is sent these.
      The server keeps as many rounds' stacks as can be needed.

    The aggregation is exact, so ``aggregation_error`` in ``rounds.jsonl`` is not its own: it says what averaging the
    clients' factors would have cost in this round.

    Args:
        downlink: see above.
        ranks: ranks of the clients, separated by commas, dealt in turns; by default all have the model's, which is best
            the largest of them. The scale α/r of the model's rank serves all. A model that starts from an adapter has
            its update merged first, for no client of a smaller rank could hold it.
    """

    downlink: Literal["dense", "stack"] = "dense"

    name = "flora"
    title = "FLoRA"
    source = "Wang, Shen, He, Sun, Wang, Lyu, Li 2024"
    own_aggregate = "it stacks factors, and averages none"
    not_private = "its server multiplies the factors of single clients"
    pseudo_gradient = False
    shared = ("lora_A", "lora_B", "merged")
    personal = ("head",)
    own_error = "what averaging the factors would have cost; FLoRA's own aggregation is exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "shared", (*self.shared, "merged"))

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        super().extend_model(model, groups)
        layers = lora_layers(model)
        if not layers:
            raise ModelError("FLoRA merges updates into frozen weights, which the model has not; use --model hf:…")
        for layer in layers.values():
            layer.keep_merged()
            if self.ranks_of_clients:
                layer.merge()
        known, merged = groups_of(model), tuple(f"{name}.merged" for name in layers)
        set_groups(model, known | {"merged": merged, "body": (*known["body"], *merged)})
        return model

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        pairs = factor_pairs(list(server.shared))
        factors = {name for pair in pairs for name in pair}
        rest = [Update(u.client, u.samples, {n: v for n, v in u.tensors.items() if n not in factors}) for u in updates]
        if rest[0].tensors:
            server.shared.update(server.mean(rest))
        for a_name, b_name in pairs:
            merged = a_name.removesuffix("lora_A") + "merged"
            a, b = self.stacked_factors(server, updates, a_name, b_name)
            server.shared[merged] = server.shared[merged] + b @ a
            if self.downlink == "stack":
                server.memory |= {stack_name(round, a_name): a, stack_name(round, b_name): b}
            server.shared[a_name] = fresh_factor(server.shared[a_name], server.seed, round, a_name, self.start)
            server.shared[b_name] = torch.zeros_like(server.shared[b_name])
        server.memory = worth_keeping(server.memory, server.shared)

    def spared(self, server: Server, heard: int) -> tuple[frozenset[str], Tensors]:
        if self.downlink == "dense":
            return frozenset(), {}
        return spared(server, heard)

    def worked_out(self, known: Tensors, sent: Tensors, round: int, seed: int) -> Tensors:
        return sent if self.downlink == "dense" else worked_out(known, sent, round, seed, self.start)
