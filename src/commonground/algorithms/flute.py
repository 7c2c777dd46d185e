"""FLUTE."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from commonground.algorithms.base import Algorithm, Client, Output, Server, Tensors, Update
from commonground.models import Groups
from commonground.models.heads import find_linear_head

__all__ = ["FLUTE", "neural_collapse"]

CLASSES = "flute/classes"


def neural_collapse(weight: Tensor, present: Tensor, classes: Tensor | int) -> Tensor:
    """How far a head is from a simplex on its client's classes: ‖HᵀH/‖HᵀH‖_F − (m−1)^(−½) uuᵀ⊙(I − 11ᵀ/m)‖_F.

    With m the number of all classes this is NC_i (Liu et al. 2024, eq. (51)), with the number of the client's own
    classes the term of their Averaged Local NC2 (App. C.2).

    Args:
        weight: [all classes, features], a linear layer's weight, which is Hᵀ.
        present: [all classes] u, 1 for a class the client has and 0 otherwise.
        classes: m, at least 2.
    """
    gram = weight @ weight.T
    gram = gram / torch.linalg.vector_norm(gram).clamp(min=torch.finfo(gram.dtype).tiny)
    eye = torch.eye(len(present), dtype=weight.dtype, device=weight.device)
    target = present.unsqueeze(1) * present.unsqueeze(0) * (eye - 1 / classes) / (classes - 1) ** 0.5
    distance: Tensor = torch.linalg.vector_norm(gram - target)
    return distance


@dataclass(frozen=True)
class FLUTE(Algorithm):
    """FLUTE: a shared body and personal heads that the server sees and aligns (Liu et al. 2024, Algorithm 2).

    Participants train body and head together on the loss of eq. (49): cross-entropy + λ1‖ψ(x)‖² + λ2‖H_i‖²_F +
    λ3·NC_i(H_i), with NC_i of eq. (51), in which m is the number of all classes and u_i marks the client's. They send
    both, and which classes they have; the server averages bodies, takes one gradient step on the sampled heads for
    R = Σ NC_i(H_i), and returns each client its own head. So heads are personal, but unlike FedRep's they leave their
    client, as do the names of its classes. A client's head is kept by the client between its rounds.

    The paper gives no values for λ1, λ2, λ3 and the server's step; the defaults are those of the authors' code. That
    code takes λ1 = 0.0005 on the sum of a batch's squared feature norms and the step 0.5 on the mean of NC_i. The
    paper's formulas have a mean and a sum; the defaults here are what the code's values amount to in its setting of
    batches of 10 and 10 participants. ``feature_norms="sum", feature_penalty=0.0005, server_penalty="mean",
    server_lr=0.5`` is the code's own form. The code also adds weight decay 1e-4, and tests before the server's step on
    the heads. It takes the epochs of FLUTE* on the head before those on both parts (``head_first``), where the paper
    has them behind: then heads end fitted to a body of the client's own, and meet the averaged one only in the test.

    Args:
        feature_penalty: λ1, of squared feature norms.
        head_penalty: λ2, of the squared norm of the head.
        collapse_penalty: λ3, of the distance to neural collapse.
        server_lr: η_r, the server's step on the heads.
        feature_norms: whether a batch's squared feature norms are averaged (eq. (49)) or added up (the code).
        server_penalty: whether R adds up (the paper) or averages (the code) the participants' NC_i.
        head_epochs: further epochs on the head alone (FLUTE*, §7.2); none for FLUTE.
        head_first: whether these come before the epochs on both (the code) or after them (the paper).
    """

    feature_penalty: Annotated[float, Field(ge=0)] = 0.005
    head_penalty: Annotated[float, Field(ge=0)] = 0.0025
    collapse_penalty: Annotated[float, Field(ge=0)] = 0.25
    server_lr: Annotated[float, Field(ge=0)] = 0.05
    feature_norms: Literal["mean", "sum"] = "mean"
    server_penalty: Literal["sum", "mean"] = "sum"
    head_epochs: Annotated[int, Field(ge=0)] = 0
    head_first: bool = False

    name = "flute"
    title = "FLUTE"
    source = "Liu, Shen, Yang 2024"
    shared = ("body",)
    personal = ("head",)
    needs_classes = True
    not_private = ""
    server_sees = "its clients send their heads and which classes they have"

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        """The model itself, once it is known that its head is linear."""
        find_linear_head(model, groups, self.title)
        return model

    def sends(self, round: int) -> tuple[str, ...]:
        """Body and head."""
        return ("body", "head")

    def upload_state(self, initial: Tensors, groups: Groups) -> Tensors:
        """u_i, which the server needs for R."""
        head = initial[_weight(groups.names("head"))]
        return {CLASSES: head.new_zeros(len(head))}

    def change_of(self, received: Tensors, sent: Tensors, buffers: Collection[str]) -> Tensors:
        """The body's; heads go back to their own clients, and nobody else's tensors depend on them."""
        return {name: received[name] for name in sent if name in received}

    def client_update(self, client: Client, round: int) -> Tensors:
        """Epochs on body and head for eq. (49), and those on the head alone, if any, behind or before them."""
        head = client.get("head")
        weight, task = _weight(head), client.task

        def loss(out: Output, y: Tensor) -> Tensor:
            norms = out.features.flatten(1).square().sum(1)
            scale = out.weight.sum() if self.feature_norms == "sum" else 1.0
            return task.loss(out.logits, y) + self.feature_penalty * scale * norms

        def penalty(own: Tensors, received: Tensors) -> Tensor:
            present = (own["class_counts"] > 0).to(own[weight].dtype)
            collapse = neural_collapse(own[weight], present, len(present))
            return self.head_penalty * own[weight].square().sum() + self.collapse_penalty * collapse

        def fit_head() -> None:
            # The features do not depend on the head, so λ1‖ψ(x)‖² has no gradient here.
            client.fit("head", epochs=self.head_epochs, penalty=penalty)

        if self.head_epochs and self.head_first:
            fit_head()
        client.fit("all", loss=loss, penalty=penalty)
        if self.head_epochs and not self.head_first:
            fit_head()
        return client.send(("body", "head")) | {CLASSES: (client.class_counts > 0).to(head[weight].dtype)}

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """The mean of the bodies."""
        bodies = [replace(u, tensors={n: t for n, t in u.tensors.items() if n in server.shared}) for u in updates]
        server.shared.update(server.mean(bodies))

    def replies(self, server: Server, updates: Sequence[Update]) -> dict[int, Tensors]:
        """Every participant's own head after the step H_i ← H_i − η_r ∂R/∂H_i; biases are not in R."""
        factor = 1 / len(updates) if self.server_penalty == "mean" else 1.0
        heads: dict[int, Tensors] = {}
        for update in updates:
            name = _weight([n for n in update.tensors if n not in server.shared and n != CLASSES])
            present = update.tensors[CLASSES]
            with torch.enable_grad():
                weight = update.tensors[name].detach().clone().requires_grad_()
                (gradient,) = torch.autograd.grad(factor * neural_collapse(weight, present, len(present)), weight)
            heads[update.client] = {name: weight.detach() - self.server_lr * gradient}
        return heads


def _weight(head: Sequence[str] | Tensors) -> str:
    """Of the names of a linear layer's tensors, that of its weight."""
    return next(name for name in head if name.endswith("weight"))
