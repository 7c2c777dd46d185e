"""The weights a user's own module starts from: a run keeps them, so that any module of the same architecture will do
to load it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from commonground.errors import ModelError
from commonground.models.behaviour import copied
from commonground.models.frozen_base import FrozenBaseModel
from commonground.models.groups import constants_of

__all__ = ["check_weights", "own_copy", "reset_counters", "restored", "start_of"]


def check_weights(model: nn.Module) -> None:
    """Refuse a module whose weights are not there yet, or are none that an engine could average.

    Raises:
        ModelError: a lazy layer has none, they are on no device, complex, or share memory without being one.
    """
    seen: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, nn.parameter.UninitializedParameter | nn.parameter.UninitializedBuffer):
            raise ModelError(f"the model's weight '{name}' has no shape yet; run the model once on a sample beforehand")
        if tensor.device.type == "meta":
            raise ModelError(f"the model's tensor '{name}' is on the device 'meta', where it has no values")
        if tensor.is_complex() or tensor.layout != torch.strided:
            kind = tensor.dtype if tensor.is_complex() else tensor.layout
            raise ModelError(f"the model's tensor '{name}' is {kind}; dense real numbers are needed")
        if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
            raise ModelError(f"the values of the model's tensor '{name}' share memory (expand); give it a clone()")
        if not tensor.numel() or not isinstance(tensor, nn.Parameter):
            continue
        if (other := seen.setdefault(tensor.untyped_storage().data_ptr(), name)) != name:
            raise ModelError(
                f"the model's parameters '{other}' and '{name}' share memory without being one; tie them by giving "
                "both modules the same nn.Parameter object"
            )


def own_copy(model: nn.Module) -> nn.Module:
    """A copy of a user's module, for a run to train.

    Raises:
        ModelError: as :func:`check_weights` (a copy would hide some of it), or it cannot be copied.
    """
    check_weights(model)
    return copied(model)


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


def restored(model: nn.Module, start: dict[str, Tensor], run: str) -> nn.Module:
    """A copy of a module with the tensors of :func:`start_of` in place of its own.

    It has their number type: as in training, a method extends the module before it is cast to the run's.

    Args:
        model: of the same architecture; its weights do not matter.
        start: the tensors.
        run: what to call the run in a message.

    Raises:
        ModelError: names the first tensor in which the architectures differ.
    """
    model = copied(model)
    kinds = [value.dtype for value in start.values() if value.is_floating_point()]
    if kinds and not isinstance(model, FrozenBaseModel):
        model = model.to(kinds[0])
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
