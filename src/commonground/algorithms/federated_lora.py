"""What the federated LoRA methods have in common: their groups, the task head, and how exact an average is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from commonground.algorithms.base import Algorithm, Client, Server, Tensors, Update
from commonground.devices import wide
from commonground.errors import ConfigError
from commonground.models import Groups, constants_of, groups_of, set_constants, set_groups
from commonground.models.lora import adapt_linear_layers

__all__ = ["FederatedLoRA", "Head", "aggregation_error", "factor_pairs"]

Head = Literal["personal", "shared", "frozen"]

RANK, ALPHA = 8, 16.0  # of factors given to a model that has none


@dataclass(frozen=True)
class FederatedLoRA(Algorithm):
    """Base of the methods that train LoRA factors (W x + α/r · B A x with B [out, r] zero at the start, A [r, in]).

    Chen et al. (RoLoRA) write ΔW = A B for the transpose and do not say what becomes of the task head. Here it is one
    of three, named in every result:

    - ``personal`` (the default): each client trains a head of its own, as FedRep's clients do (Collins et al. 2021);
      nothing but factors travels;
    - ``shared``: the head is trained and averaged with the factors, as peft and FederatedScope do by default;
    - ``frozen``: it stays as it was drawn.

    Language models have no task head: whatever ``head`` is, all they train is shared, and there is one global model.

    A model of another kind than ``hf:…`` gets factors in all its linear layers but the head; the rest of it stays as it
    is, pretrained by the user or random.

    Args:
        head: what becomes of the task head.
        rank, alpha: r and α of the factors given to a model of another kind (an ``hf:…`` model has its own,
            ``model.rank`` and ``model.alpha``, and refuses these); 8 and 16 by default.
    """

    head: Head = "personal"
    rank: Annotated[int, Field(ge=1)] | None = None
    alpha: Annotated[float, Field(gt=0)] | None = None

    clients_remember = True
    factors: ClassVar[tuple[str, ...]] = ("lora_A", "lora_B")
    own_error: ClassVar[str] = "how far averaging the factors is from averaging the updates"
    _has_head: ClassVar[bool] = True  # until the model is known to have none

    def __post_init__(self) -> None:
        shared = ("lora_A", "lora_B", *(["head"] if self.head == "shared" else []))
        # Which groups travel follows from a setting, so these are the instance's own.
        object.__setattr__(self, "shared", shared)
        object.__setattr__(self, "personal", ("head",) if self.head == "personal" else ())

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        if not groups.names("head"):  # as of a language model
            object.__setattr__(self, "personal", ())
            object.__setattr__(self, "_has_head", False)
        if "lora_A" not in groups or "lora_B" not in groups:
            adapt_linear_layers(model, groups.names("head"), self.rank or RANK, self.alpha or ALPHA)
        else:
            for name in ("rank", "alpha"):
                if (value := getattr(self, name)) is not None:
                    raise ConfigError(
                        f"{name}={value:g} is for models that get their factors here; this one has factors of its own, "
                        f"whose {name} is the model's option model.{name} (--set model.{name}={value:g}; of one method "
                        f"of a comparison METHOD:model.{name}={value:g})"
                    )
        if self.head == "frozen":
            known = groups_of(model)
            set_constants(model, constants_of(model) | set(known["head"]))
            set_groups(model, known | {"head": ()})
        return model

    def trained(self, round: int) -> tuple[str, ...]:
        """The factors that clients train in a round."""
        return self.factors

    def sends(self, round: int) -> tuple[str, ...]:
        return (*self.trained(round), *(["head"] if self.head == "shared" else []))

    def rate(self, client: Client, round: int) -> float | None:
        """The learning rate of a round's local training; None for the run's own."""
        return None

    def client_update(self, client: Client, round: int) -> Tensors:
        trained = (*self.trained(round), *([] if self.head == "frozen" else ["head"]))
        client.fit(trained, lr=self.rate(client, round))
        return client.send(self.sends(round))

    def summary_fields(self) -> dict[str, Any]:
        return {"head": self.head if self._has_head else "none", "aggregation_error_of": self.own_error}

    def round_figures(self, server: Server, updates: Sequence[Update]) -> dict[str, float | Tensor | None]:
        return {"aggregation_error": aggregation_error(server, updates)}


def factor_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names of A and B of every adapted layer, from all tensors' names."""
    known = set(names)
    pairs = [(name, name[: -len("lora_A")] + "lora_B") for name in names if name.endswith("lora_A")]
    return [pair for pair in pairs if pair[1] in known]


def aggregation_error(server: Server, updates: Sequence[Update]) -> Tensor | None:
    """‖mean(BᵢAᵢ) − mean(Bᵢ) mean(Aᵢ)‖_F / ‖mean(BᵢAᵢ)‖_F over all adapted layers: how far averaging the factors is
    from averaging the updates (Chen et al., equations 1 and 2). Zero if all clients hold the same A or the same B.

    Computed in the factors' own dimension, as mean((Bᵢ − B̄)(Aᵢ − Ā)) = mean(BᵢAᵢ) − B̄ Ā; the d×d products are never
    formed. A factor that was not sent is the one the server sent out.

    Args:
        server: before its round; holds what it sent.
        updates: of this round.

    Returns:
        The ratio, NaN while all updates of the model are zero; None without updates.
    """
    if not updates:
        return None
    weights = server.weights(updates)
    errors, wholes = [], []
    for a_name, b_name in factor_pairs(list(server.shared)):
        a = torch.stack([wide(u.tensors.get(a_name, server.shared[a_name])) for u in updates])
        b = torch.stack([wide(u.tensors.get(b_name, server.shared[b_name])) for u in updates])
        w = a.new_tensor(weights).view(-1, 1, 1)
        a_off, b_off = (x - (w * x).sum(0) if len(x) > 1 else torch.zeros_like(x) for x in (a, b))
        errors.append(_squared_norm(w * b_off, a_off))
        wholes.append(_squared_norm(w * b, a))
    return (torch.stack(errors).sum() / torch.stack(wholes).sum()).sqrt()


def _squared_norm(b: Tensor, a: Tensor) -> Tensor:
    """‖Σᵢ BᵢAᵢ‖²_F of factors [N, out, r] and [N, r, in], from (N r)×(N r) products."""
    left = b.permute(1, 0, 2).flatten(1)  # [out, N r]
    right = a.flatten(0, 1)  # [N r, in]
    return ((left.T @ left) * (right @ right.T)).sum().clamp(min=0)
