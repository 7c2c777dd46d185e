"""MOON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from commonground.algorithms.base import Algorithm, Client, Output, Tensors, prefixed, unprefixed
from commonground.models import Groups
from commonground.models.heads import replace_head


class ProjectedHead(nn.Module):
    """A projection head and the output layer on it.

    Args:
        head: the model's head, whose place it takes.
        width: numbers in a projection.
    """

    def __init__(self, head: nn.Linear, width: int) -> None:
        super().__init__()
        size = head.in_features
        self.projection = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, width))
        self.output = nn.Linear(width, head.out_features)

    def forward(self, features: Tensor) -> Tensor:
        """Logits [rows, classes] of features [rows, F]."""
        logits: Tensor = self.output(self.projection(features))
        return logits


@dataclass(frozen=True)
class Moon(Algorithm):
    """MOON: FedAvg whose local features are drawn to the global model's (Li, He, Song 2021, Algorithm 1).

    For a sample, let z be what the head sees of it under the model in training, z_glob under the received global model,
    and z_prev under the model that the client ended its last round with. Local training minimises the task's loss plus
    μ times the contrastive loss −log [e^{sim(z, z_glob)/τ} / (e^{sim(z, z_glob)/τ} + e^{sim(z, z_prev)/τ})], with sim
    the cosine similarity (their eq. 3 and 4). A client that has not taken part has the initial model for its previous
    one, so the loss pulls nowhere in the first round.

    z is the output of a two-layer projection head of width 256 in the paper, and the network of all methods compared
    there has one. Here z is what the model's head sees, so that methods train one network; ``projection`` puts the
    paper's between the two. The authors' code (QinbinLi/MOON) takes the global and previous features of the same
    augmented images as z; here they are of the images as stored, without dropout. It weights averages by samples
    (``--weighting samples``).

    Args:
        strength: μ, the weight of the contrastive loss; the paper tunes it in 0.1, 1, 5, 10 and reports 5 for CIFAR-10,
            1 for CIFAR-100 and Tiny-ImageNet.
        temperature: τ, of the similarities; 0.5 in the paper.
        projection: width of a projection head to put below the output layer (256 in the paper); 0 for none.
    """

    strength: Annotated[float, Field(ge=0)] = 1.0
    temperature: Annotated[float, Field(gt=0)] = 0.5
    projection: Annotated[int, Field(ge=0)] = 0

    name = "moon"
    title = "MOON"
    source = "Li, He, Song 2021"
    shared = ("all",)

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        """The model, with a projection head if one is wanted."""
        if not self.projection:
            return model
        parts = {"head": ["output"]}  # the projection belongs to the body
        return replace_head(model, groups, self.title, lambda head: ProjectedHead(head, self.projection), parts)

    def client_state(self, initial: Tensors) -> Tensors:
        """The client's model of its last round."""
        return prefixed("own", initial)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs with the contrastive term."""
        start, task = client.get("all"), client.task
        towards = client.features()
        client.set(unprefixed("own", client.state))
        away = client.features()
        client.set(start)

        def loss(out: Output, y: Tensor) -> Tensor:
            assert out.reference is not None
            z = out.features.flatten(1)
            near, far = (F.cosine_similarity(z, other.flatten(1)) for other in out.reference.unbind(-1))
            # −log of a softmax over two is a softplus of their difference.
            return task.loss(out.logits, y) + self.strength * F.softplus((far - near) / self.temperature)

        client.fit("all", loss=loss, reference=torch.stack([towards, away], -1))
        trained = client.get("all")
        client.keep(prefixed("own", trained))
        return client.send(trained)
