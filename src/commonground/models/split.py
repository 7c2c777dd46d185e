"""Cutting a model in two: a frozen first part, whose outputs can be computed once, and the rest.

Source: with the body fixed during FedRep's head epochs (Collins et al. 2021, Algorithm 1) a client's features do not
change, so they are computed once per phase instead of once per epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from commonground.models.calling import call
from commonground.models.dropout import KeyedDropout
from commonground.models.groups import aliases_of, tensors_of
from commonground.models.heads import inputs_of

__all__ = ["ModelCut", "find_split"]


@dataclass(frozen=True)
class ModelCut:
    """A model cut in two so that ``rest(first(x)) = model(x)``.

    Attributes:
        first: the model that computes ``first`` (for a chain its leading layers; otherwise the model itself, of
            which the input of ``rest`` is captured).
        rest: the submodule applied last.
        prefix: what to put before a tensor's name in ``rest`` to get its name in the model.
        captured: whether ``first`` is the whole model and the input of ``rest`` must be captured.
    """

    first: nn.Module
    rest: nn.Module
    prefix: str
    captured: bool

    @property
    def rest_names(self) -> dict[str, str]:
        """Names in the whole model to names inside ``rest``."""
        return {self.prefix + name: name for name in tensors_of(self.rest)}

    def features(self, run: Callable[[dict[str, Tensor]], Tensor], x: dict[str, Tensor]) -> Tensor:
        """Outputs of ``first`` for inputs ``x``; ``run`` runs ``first`` (directly or with given tensors)."""
        if not self.captured:
            return run(x)
        with inputs_of(self.rest) as given:
            run(x)
        return given[0]


def find_split(model: nn.Module, trained: Collection[str], sample: dict[str, Tensor]) -> ModelCut | None:
    """The latest cut before which nothing is trained and nothing is random, or None if there is none.

    Args:
        model: the whole model.
        trained: names of the tensors that are trained.
        sample: a few inputs by name, to check a cut found by name.
    """
    if not trained or aliases_of(model):
        return None  # a tensor under two names may be in both parts
    hooked = model._forward_hooks or model._forward_pre_hooks  # they are of the whole, not of its parts
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward and not hooked:
        cut = 0
        layers = [(name, layer) for name, layer in model._modules.items() if layer is not None]
        for name, layer in layers:
            random = any(isinstance(m, KeyedDropout) and m.p > 0 for m in layer.modules())
            if random or any(t == name or t.startswith(name + ".") for t in trained):
                break
            cut += 1
        first, rest = (nn.Sequential(OrderedDict(part)) for part in (layers[:cut], layers[cut:]))
        worth = any(True for _ in first.parameters())
        return ModelCut(first, rest, "", captured=False) if worth else None
    if any(isinstance(m, KeyedDropout) and m.p > 0 for m in model.modules()):
        return None
    owners = [
        (name, module)
        for name, module in model.named_modules()
        if name and {f"{name}.{t}" for t in tensors_of(module)} == set(trained)
    ]
    for name, module in owners:
        split = ModelCut(model, module, name + ".", captured=True)
        if _is_last(split, model, sample):
            return split
    return None


def _is_last(split: ModelCut, model: nn.Module, sample: dict[str, Tensor]) -> bool:
    """Whether the model returns just what ``rest`` returns, so that the cut is exact whatever the weights are."""
    training = model.training
    outputs: list[object] = []
    handle = split.rest.register_forward_hook(lambda module, inputs, out: outputs.append(out))
    model.eval()
    try:
        with torch.no_grad():
            result = call(model, {name: value.clone() for name, value in sample.items()})
        return len(outputs) == 1 and outputs[0] is result
    finally:
        handle.remove()
        model.train(training)
