"""FedBABU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from commonground.algorithms.base import Algorithm, Client, Tensors
from commonground.errors import ModelError
from commonground.models import Groups


@dataclass(frozen=True)
class FedBABU(Algorithm):
    """FedBABU: only the body is trained, under a head that stays at its start (Oh et al. 2022).

    The global model is the averaged body with the untrained head. Personal accuracy is that of the global model after
    each client has fine-tuned its head on its own data, as the abstract says of the evaluation; what is learnt there is
    forgotten. ``--finetune-epochs`` does this once, after the last round.

    Args:
        tune_epochs: epochs of fine-tuning before a client's model is tested, at the round's learning rate; 5 in the
            authors' public code.
        tune: what is fine-tuned, the ``head`` or ``all`` of the model; the authors' public code (jhoon-oh/FedBABU,
            analysis.ipynb) measures personal accuracy after tuning all of it.
    """

    tune_epochs: Annotated[int, Field(ge=0)] = 5
    tune: Literal["head", "all"] = "head"

    name = "fedbabu"
    title = "FedBABU"
    source = "Oh, Kim, Yun 2022"
    # The head is common to all and constant; it travels down with the body, and is never sent up.
    shared = ("all",)

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        """The model itself, once it is known to have a body."""
        if not groups.trainable("body"):
            raise ModelError("FedBABU trains nothing but the body, which this model lacks; use --model mlp or cnn")
        return model

    def sends(self, round: int) -> tuple[str, ...]:
        """The body."""
        return ("body",)

    def client_update(self, client: Client, round: int) -> Tensors:
        """Local epochs on the body, which is sent."""
        client.fit("body")
        return client.send("body")

    def personalize(self, client: Client, round: int) -> None:
        """Fine-tuning before a test."""
        client.fit(self.tune, epochs=self.tune_epochs)
