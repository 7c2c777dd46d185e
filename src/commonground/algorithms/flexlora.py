"""FlexLoRA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from commonground.algorithms.base import Server, Tensors, Update
from commonground.algorithms.client_ranks import ClientRanks, lora_layers
from commonground.algorithms.federated_lora import factor_pairs
from commonground.algorithms.flora_stacks import fresh_factor
from commonground.devices import wide
from commonground.models import Groups


@dataclass(frozen=True)
class FlexLoRA(ClientRanks):
    """FlexLoRA: the server averages the products BᵢAᵢ and brings the mean back to rank r by a truncated SVD (Bai et
    al. 2024).

    With the mean U Σ Vᵀ, the new factors are B = U_r Σ_r^s and A = Σ_r^(1−s) V_rᵀ; the paper leaves s open. Where the
    mean has a rank below r, a balanced split would leave the rest of both factors zero, which no gradient changes any
    more; there a row of A is drawn anew, as at the start, and B is zero.

    Clients may have factors of different ranks: one of rank k is sent the mean cut to rank k, and what it sends, of
    rank k, counts in the mean with its whole product. Tests are of the server's model, of rank r. A model that starts
    from an adapter has it written as a singular value decomposition first, so that the first cut, too, is the best one.

    ``aggregation_error`` in ``rounds.jsonl`` is not its own: it says what averaging the factors would have cost.

    Args:
        split: ``balanced`` (s = 1/2, both factors of equal norm, the default), ``B`` (s = 1: A has orthonormal rows) or
            ``A`` (s = 0).
        ranks: ranks of the clients, separated by commas, dealt in turns; by default all have the model's, which is best
            the largest of them. The scale α/r of the model's rank serves all.
    """

    split: Literal["balanced", "A", "B"] = "balanced"

    name = "flexlora"
    title = "FlexLoRA"
    source = "Bai, Chen, Qian, Yao, Li 2024"
    own_aggregate = "it averages products of factors"
    not_private = "its server multiplies the factors of single clients"
    pseudo_gradient = False
    shared = ("lora_A", "lora_B")
    personal = ("head",)
    own_error = "what averaging the factors would have cost; FlexLoRA averages their products"

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        super().extend_model(model, groups)
        for layer in lora_layers(model).values() if self.ranks_of_clients else ():
            with torch.no_grad():
                a, b = layer.lora_A, layer.lora_B
                if bool(b.any()):
                    new_a, new_b = truncated_factors(a, b, len(a), 0.5)
                    a.copy_(new_a)
                    b.copy_(new_b)
        return model

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        pairs = factor_pairs(list(server.shared))
        factors = {name for pair in pairs for name in pair}
        rest = [Update(u.client, u.samples, _without(u.tensors, factors)) for u in updates]
        if rest[0].tensors:
            server.shared.update(server.mean(rest))
        power = {"balanced": 0.5, "B": 1.0, "A": 0.0}[self.split]
        for a_name, b_name in pairs:
            a, b = self.stacked_factors(server, updates, a_name, b_name)
            rank = server.shared[a_name].shape[0]
            new_a, new_b = truncated_factors(a, b, rank, power)
            if self.split == "balanced":
                new_a, new_b = revived(new_a, new_b, fresh_factor(new_a, server.seed, round, a_name, self.start))
            server.shared[a_name], server.shared[b_name] = new_a, new_b


def truncated_factors(a: Tensor, b: Tensor, rank: int, power: float) -> tuple[Tensor, Tensor]:
    """The best rank-r factors of B A, from the thin factors alone: QR of both and an SVD of the small core.

    Args:
        a: [n, in].
        b: [out, n].
        rank: r.
        power: share of the singular values that goes to B, as an exponent.

    Returns:
        A [r, in] and B [out, r] in the given number type; where B A has a lower rank, the rest is zero.
    """
    q_b, r_b = torch.linalg.qr(wide(b))
    q_a, r_a = torch.linalg.qr(wide(a).T)
    u, s, v = torch.linalg.svd(r_b @ r_a.T)
    kept = min(rank, len(s))
    u, s, v = q_b @ u[:, :kept], s[:kept], v[:kept] @ q_a.T
    # Singular vectors are known up to a common sign: the largest entry of each left one is made positive, so that a
    # last bit of difference between engines does not turn a factor round.
    sign = u.gather(0, u.abs().argmax(0, keepdim=True)).sign().squeeze(0)
    u, v = u * sign, v * sign.unsqueeze(1)
    new_a = v.new_zeros(rank, a.shape[1])
    new_b = u.new_zeros(b.shape[0], rank)
    new_b[:, :kept] = u * s**power
    new_a[:kept] = v * (s ** (1 - power)).unsqueeze(1)
    return new_a.to(a.dtype), new_b.to(b.dtype)


def revived(a: Tensor, b: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
    """Balanced factors, with fresh rows of A and zero columns of B where their singular value is 0 but for rounding.

    Args:
        a: [r, in], in rows the right singular vectors times the roots of singular values.
        b: [out, r].
        fresh: [r, in].
    """
    values = a.square().sum(1)
    spent = values <= values.max() * len(a) * torch.finfo(a.dtype).eps
    return torch.where(spent.unsqueeze(1), fresh, a), torch.where(spent, torch.zeros_like(b), b)


def _without(tensors: Tensors, names: set[str]) -> Tensors:
    return {name: value for name, value in tensors.items() if name not in names}
