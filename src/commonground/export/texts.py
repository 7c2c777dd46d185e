"""A classifier of texts as a program: what it takes, and what it computes."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from commonground.adapters import merged
from commonground.engine.run import Run
from commonground.errors import ConfigError
from commonground.export.formats import Traced
from commonground.export.reading import token_inputs
from commonground.models.adapted import AdaptedModel
from commonground.models.adapted_kinds import pooling_by_mask
from commonground.tasks import Task

__all__ = ["traced_texts"]


def traced_texts(run: Run, network: AdaptedModel, client: int | None) -> Traced:
    """A classifier of texts from tokens on, its adapter merged."""
    if run.trained.task.generative:
        raise ConfigError("a language model is exported as --format peft, or merged: --format safetensors")
    with merged(network, run.trained.values_of(client)):
        base = copy.deepcopy(network.base)
    inputs = token_inputs(network)
    model = _Texts(base, tuple(inputs), run.trained.task)
    return Traced(model, tuple(inputs), tuple(inputs.values()), varying={1: network.longest})


class _Texts(nn.Module):
    """A transformers classifier from tokens to what the task says."""

    def __init__(self, base: nn.Module, names: tuple[str, ...], task: Task) -> None:
        super().__init__()
        self.base, self.names, self.task = base, names, task
        self.eval()

    def forward(self, *samples: Tensor) -> Tensor:
        inputs = dict(zip(self.names, samples, strict=True))
        with pooling_by_mask(self.base, inputs["attention_mask"]):
            logits = self.base(**inputs).logits
        return self.task.interpret(logits.float())
