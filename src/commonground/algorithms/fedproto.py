"""FedProto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from commonground.algorithms.base import Algorithm, Client, Output, Server, Tensors, Update
from commonground.models import Groups
from commonground.models.heads import replace_head


class PrototypeHead(nn.Module):
    """A client's own head, and the prototype of every class.

    Args:
        head: the model's head, which becomes the client's own.
        nearest: whether the model predicts by the nearest prototype when it is tested; in training it is the head.
    """

    prototypes: Tensor
    samples: Tensor

    def __init__(self, head: nn.Linear, nearest: bool) -> None:
        super().__init__()
        self.own = head
        self.nearest = nearest
        self.register_buffer("prototypes", torch.zeros_like(head.weight, requires_grad=False))
        self.register_buffer("samples", torch.zeros_like(head.weight[:, 0], requires_grad=False))

    def forward(self, features: Tensor) -> Tensor:
        """Logits [rows, classes] of features [rows, F]: the head's, or minus the squared distances to the prototypes,
        with classes that have none behind all others.
        """
        if self.training or not self.nearest:
            logits: Tensor = self.own(features)
            return logits
        squares = (features.unsqueeze(-2) - self.prototypes).square().sum(-1)
        last = squares.amax(-1, keepdim=True) + 1
        return -torch.where(self.samples > 0, squares, last)


@dataclass(frozen=True)
class FedProto(Algorithm):
    """FedProto: clients share the mean feature of each class, and no model (Tan et al. 2022, Algorithm 1).

    A client's prototype of a class is the mean of what its head sees over its training samples of that class (their
    eq. 3). Local training of the client's own model minimises cross-entropy plus λ times the sum, over the classes in a
    mini-batch, of the distance between the mini-batch's mean feature of the class and the global prototype (eq. 7;
    classes without a global prototype are left out, so in the first round all are). Then the client sends its
    prototypes, computed anew over all its samples, and the server averages them by class (eq. 6). Bodies and heads stay
    at home and start alike. A sample is given the class of the nearest global prototype.

    What a client sends tells the server which classes it has, how many samples of each, and their mean features; those
    of a class with a single sample are that sample's features. With ``aggregation=uniform`` the numbers are not sent,
    only which classes there are.

    The paper calls the distance L2; here it is the mean squared difference of the features, as in the authors' code
    (yuetan031/FedProto), whose λ = 1 goes with it. (The norm itself, ``distance=norm``, draws all features to zero on
    small data at that λ; 0.1 works.) Eq. 6 also divides the weighted mean by the number of clients that have the class,
    which would shrink prototypes to a fraction of their features; that is taken for a slip. The code takes the mean
    over samples where eq. 7 has class means, averages prototypes without weights, collects them while the last local
    epoch still changes the model, and when it tests, leaves out the classes a client has no samples of;
    ``distance=samples`` and ``aggregation=uniform`` are its first two. A class that no participant has keeps its last
    prototype here. Models of different architectures, which the paper allows, are not part of this.

    Args:
        strength: λ, the pull to global prototypes; 1 in the authors' commands.
        aggregation: of prototypes over clients, weighted by ``samples`` of the class (the paper) or ``uniform`` (the
            authors' code).
        distance: of features to global prototypes while training: of the mini-batch's class ``means`` (the paper),
            their ``norm``, which is the same without the square, or of ``samples`` (the authors' code).
        evaluate: what a test predicts with: the nearest of the ``prototypes``, or the client's own ``head``.
    """

    strength: Annotated[float, Field(ge=0)] = 1.0
    aggregation: Literal["samples", "uniform"] = "samples"
    distance: Literal["means", "norm", "samples"] = "means"
    evaluate: Literal["prototypes", "head"] = "prototypes"

    name = "fedproto"
    title = "FedProto"
    source = "Tan, Long, Liu, Zhou, Lu, Jiang, Zhang 2022"
    own_aggregate = "a class's prototype is the mean over the clients that have the class"
    not_private = "its clients send class means and numbers of samples, which are no change of anything they were sent"
    shared = ("prototypes",)
    personal = ("body", "own_head")
    needs_classes = True
    pseudo_gradient = False
    unused = (("weighting", "its prototypes are weighed by a class's samples, or alike (--set aggregation=uniform)"),)

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        """The model with :class:`PrototypeHead` in place of its linear head."""
        parts = {"own_head": ["own"], "prototypes": ["prototypes", "samples"]}
        nearest = self.evaluate == "prototypes"
        return replace_head(model, groups, self.title, lambda head: PrototypeHead(head, nearest), parts)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs on the whole model, then the client's prototypes."""
        means, counts = _named(client.received)
        prototypes, known = client.received[means], client.received[counts] > 0
        task = client.task

        def loss(out: Output, y: Tensor) -> Tensor:
            if self.distance == "samples":
                far = _from_samples(out, y, prototypes, known)
            else:
                far = _from_means(out, y, prototypes, known, self.distance == "norm")
            return task.loss(out.logits, y) + self.strength * far

        client.fit(self.personal, loss=loss)
        own = client.class_counts
        return client.send({means: client.class_means(), counts: own if self.aggregation == "samples" else own.sign()})

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        """The mean of each class's prototypes over the clients that have it."""
        means, counts = _named(server.shared)
        weight = torch.stack([u.tensors[counts] for u in updates]).clamp(min=0)
        total = weight.sum(0)
        sums = (torch.stack([u.tensors[means] for u in updates]) * weight.unsqueeze(2)).sum(0)
        mean, sent = sums / total.clamp(min=1).unsqueeze(1), total > 0
        server.shared[means] = torch.where(sent.unsqueeze(1), mean, server.shared[means])
        server.shared[counts] = torch.where(sent, total, server.shared[counts])


def _named(tensors: Tensors) -> tuple[str, str]:
    """The names of the prototypes [classes, F] and of the numbers of samples behind them [classes]."""
    means = next(name for name in tensors if name.endswith("prototypes"))
    return means, f"{means.removesuffix('prototypes')}samples"


def _from_means(out: Output, y: Tensor, prototypes: Tensor, known: Tensor, norm: bool) -> Tensor:
    """Σ over classes of the mean squared difference of the mini-batch's mean and the prototype, or of its norm."""
    features = out.features.flatten(1)
    members = _members(y, prototypes) * out.weight.unsqueeze(1)
    counts = members.sum(0)
    squares = (members.T @ features / counts.clamp(min=1).unsqueeze(1) - prototypes).square()
    # The square root has no slope at zero.
    distances = squares.sum(1).clamp(min=1e-24).sqrt() if norm else squares.mean(1)
    return (distances * ((counts > 0) & known)).sum()


def _from_samples(out: Output, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """[rows] mean squared difference between a sample's features and its class's prototype."""
    members = _members(y, prototypes)
    return (out.features.flatten(1) - members @ prototypes).square().mean(1) * (members @ known.to(members.dtype))


def _members(y: Tensor, prototypes: Tensor) -> Tensor:
    """[rows, classes] 1 where a sample has the class."""
    return (y.unsqueeze(1) == torch.arange(len(prototypes), device=y.device)).to(prototypes.dtype)
