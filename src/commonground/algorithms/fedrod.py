"""FedRoD."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from commonground.algorithms.base import Algorithm, Client, Output, Tensors
from commonground.models import Groups
from commonground.models.heads import replace_head


class TwoHeads(nn.Module):
    """A generic head that everyone shares and a personal one whose logits are added to it.

    Args:
        head: the model's head, which becomes the generic one. The personal one starts at zero, so that a client that
            has not trained yet has the generic model.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.generic = head
        self.personal = deepcopy(head)
        for parameter in self.personal.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """Logits [rows, classes] of features [rows, F]."""
        logits: Tensor = self.generic(features) + self.personal(features)
        return logits


@dataclass(frozen=True)
class FedRoD(Algorithm):
    """FedRoD: a generic and a personal head on one body (Chen & Chao 2022; linear personal head).

    Body and generic head are trained for the balanced softmax loss (their balanced risk minimisation): cross-entropy of
    the logits g_c(x) + log N_c, with N_c the client's samples of class c. In the same steps the personal head p is
    trained for the cross-entropy of g(x) + p(ψ(x)), through which nothing flows into g and ψ. Body and generic head
    are averaged. The hypernetwork that makes personal heads for clients not seen in training is not part of this.

    The authors' repository (hongyouc/Fed-RoD) holds no code. The personal head starts at zero here, and as a copy of
    the generic one in others' code (TsingZ0/PFLlib), where an untrained client has twice the generic logits.

    Args:
        evaluate: the model a client's accuracy is measured with: the ``personal`` one, g + p, or the ``generic``, g.
    """

    evaluate: Literal["personal", "generic"] = "personal"

    name = "fedrod"
    title = "FedRoD"
    source = "Chen, Chao 2022"
    shared = ("body", "generic_head")
    personal = ("personal_head",)
    needs_classes = True
    own_loss = "its balanced softmax weighs the classes itself"

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        """The model with :class:`TwoHeads` in place of its linear head."""
        parts = {"generic_head": ["generic"], "personal_head": ["personal"]}
        return replace_head(model, groups, self.title, TwoHeads, parts)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs on both losses; body and generic head are sent."""
        generic, personal = tuple(client.get("generic_head")), tuple(client.get("personal_head"))

        def loss(out: Output, y: Tensor) -> Tensor:
            shared = F.linear(out.features, *(out.own[name] for name in generic))
            own = F.linear(out.features.detach(), *(out.own[name] for name in personal))
            # A class the client lacks has log 0 = −∞: it drops out of the softmax.
            balanced = F.cross_entropy(shared + out.own["class_counts"].log(), y, reduction="none")
            return balanced + F.cross_entropy(shared.detach() + own, y, reduction="none")

        client.fit("all", loss=loss)
        return client.send(self.shared)

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        """The personal head, or none of it (see ``evaluate``)."""
        factor = 1.0 if self.evaluate == "personal" else 0.0
        return {name: value * factor for name, value in own.items() if "/" not in name}
