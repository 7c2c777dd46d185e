"""The weights a user's own module starts from: a run keeps them, so that any module of the same architecture will do
to load it.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from commonground.errors import ModelError
from commonground.models.frozen_base import FrozenBaseModel
from commonground.models.groups import constants_of

__all__ = ["check_weights", "reset_counters", "restored", "start_of"]


def check_weights(model: nn.Module) -> None:
    """Refuse a module whose weights are not there yet.

    Raises:
        ModelError: a lazy layer has none.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ModelError(f"the model's weight '{name}' has no shape yet; run the model once on a sample beforehand")


def start_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all tensors in a module's state, by name; a frozen base, which is known by its digest, is left out.

    Raises:
        ModelError: a lazy layer has no weights yet.
    """
    check_weights(model)
    constants = constants_of(model) if isinstance(model, FrozenBaseModel) else frozenset()
    return {
        name: value.detach().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor) and name not in constants
    }


def restored(model: nn.Module, start: dict[str, Tensor], dtype: torch.dtype, run: str) -> nn.Module:
    """A copy of a module with the tensors of :func:`start_of` in place of its own.

    Args:
        model: of the same architecture; its weights do not matter.
        start: the tensors.
        dtype: the run's number type.
        run: what to call the run in a message.

    Raises:
        ModelError: names the first tensor in which the architectures differ.
    """
    model = copy.deepcopy(model)
    if not isinstance(model, FrozenBaseModel):
        model = model.to(dtype)
    live = model.state_dict()
    mine = start_of(model)
    for name in [*mine, *(name for name in start if name not in mine)]:
        has, had = (tuple(t[name].shape) if name in t else None for t in (mine, start))
        if has != had:
            one, other = (f"has the shape {shape}" if shape is not None else "is missing" for shape in (has, had))
            raise ModelError(f"the given model does not fit {run}: '{name}' {one}, and in the run's model it {other}")
    with torch.no_grad():
        for name, value in start.items():
            live[name].copy_(value)
    return model


def reset_counters(model: nn.Module) -> None:
    """Set the batch counters of BatchNorm layers back: they belong to no client."""
    for name, counter in model.named_buffers():
        if name.endswith("num_batches_tracked"):
            counter.zero_()
