"""FedCP."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from commonground.algorithms.base import Algorithm, Client, Output, Tensors
from commonground.models import Groups
from commonground.models.heads import replace_head

# Widths of the Gaussian kernels of the authors' code.
WIDTHS = (10.0, 15.0, 20.0, 50.0)


class PolicyHead(nn.Module):
    """Two heads and a policy that shares out each sample's features between them.

    Args:
        head: the model's head; both the global and the personal one start from it.
    """

    context: Tensor

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        width = head.in_features
        self.generic = head
        self.personal = deepcopy(head)
        self.policy = nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU())
        self.register_buffer("context", head.weight.detach().sum(0))

    def forward(self, features: Tensor) -> Tensor:
        """Logits [rows, classes] of features h [rows, F]: generic(r⊙h) + personal(s⊙h), with r + s = 1."""
        conditions = features * F.normalize(self.context, dim=0)
        scores = self.policy(conditions).unflatten(1, (2, -1))
        own, common = torch.softmax(scores, dim=1).unbind(1)
        logits: Tensor = self.personal(own * features) + self.generic(common * features)
        return logits


def discrepancy(one: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two samples [rows, F], with the sum of four Gaussian kernels.

    Args:
        one, other: the samples, row by row.
        weight: [rows], 0 for rows to leave out.
    """

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = a.square().sum(1).unsqueeze(1) + b.square().sum(1).unsqueeze(0) - 2 * a @ b.T
        return torch.stack([torch.exp(-0.5 * squares / width) for width in WIDTHS]).sum(0)

    pairs = weight.unsqueeze(1) * weight.unsqueeze(0)
    total = kernel(one, one) + kernel(other, other) - 2 * kernel(one, other)
    return (pairs * total).sum() / pairs.sum().clamp(min=1)


@dataclass(frozen=True)
class FedCP(Algorithm):
    """FedCP: a policy splits every sample's features between a global and a personal head (Zhang et al. 2023).

    A client takes over the received body, policy and global head; its personal head stays with it. The global head is
    frozen in local training; body, policy and personal head are trained for the task's loss (cross-entropy in the
    paper) plus λ times the maximum mean discrepancy between the batch's features under the body and under the received
    one. The policy sees h ⊙ v/‖v‖, with v the sum over outputs of the personal head's weights at the start of the
    round, and gives two weights of each feature that add up to 1: r, whose share goes to the global head, and s, whose
    share goes to the personal one. A client is tested with both heads. Body and policy are sent, and for the global
    head the mean of the received global and the own personal head, ½(global + personal); all three are averaged.

    The authors' public code (TsingZ0/FedCP) draws Gumbel noise onto the policy's scores, in tests too; here the policy
    is its softmax without noise. It weights averages by samples (``--weighting samples``), draws v for a client's first
    round at random, and returns the averaged global head and policy to the round's participants alone, so that others
    are tested with those of their last round and start their next one from them; here v starts from the head, and
    everybody has the current ones. Where all clients take part in all rounds, the last is the same.

    Args:
        discrepancy_penalty: λ, the weight of the discrepancy; 5 in the authors' command (run_me.sh).
    """

    discrepancy_penalty: Annotated[float, Field(ge=0)] = 5.0

    name = "fedcp"
    title = "FedCP"
    source = "Zhang, Hua, Wang, Song, Xue, Ma, Guan 2023"
    shared = ("body", "global_head", "policy")
    personal = ("personal_head", "context")

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        """The model with :class:`PolicyHead` in place of its linear head."""
        parts = {"global_head": ["generic"], "personal_head": ["personal"], "policy": ["policy"]}
        return replace_head(model, groups, self.title, PolicyHead, parts | {"context": ["context"]})

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs on body, policy and personal head."""
        _set_context(client)
        task = client.task

        def loss(out: Output, y: Tensor) -> Tensor:
            assert out.reference is not None
            distance = discrepancy(out.features, out.reference, out.weight)
            return task.loss(out.logits, y) + self.discrepancy_penalty * distance

        client.fit(("body", "policy", "personal_head"), loss=loss, reference=client.features())
        _set_context(client)
        own = client.get("personal_head")
        mixed = {
            name: 0.5 * (value + mine)
            for (name, value), mine in zip(client.get("global_head").items(), own.values(), strict=True)
        }
        return client.send(("body", "policy")) | mixed


def _set_context(client: Client) -> None:
    """v: the sum over outputs of the personal head's weights."""
    weight = next(value for name, value in client.get("personal_head").items() if name.endswith("weight"))
    client.set({name: weight.sum(-2) for name in client.get("context")})
