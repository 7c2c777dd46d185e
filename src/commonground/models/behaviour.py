"""What calls of a module do besides giving outputs: they may draw random numbers and change what the module holds."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from commonground.errors import ModelError
from commonground.generators import GENERATORS
from commonground.models.groups import tensors_of
from commonground.user_code import failing_as

__all__ = ["Behaviour", "Held", "copied", "has_own_code", "held_by", "held_generators", "put_back"]

Held = dict[tuple[str, str], Any]
"""What a module and its parts hold in attributes: parameters, buffers, other tensors, numbers and texts, by the names
of the part and of the attribute. Tensors are copies."""


class _Mark(Enum):
    """Stands for an attribute that is not there."""

    NOTHING = 0


# Layers of PyTorch that draw in training and cannot be given their draws.
_DRAWING = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Behaviour:
    """What a trial of a module has shown.

    Attributes:
        own: whether it holds code of somebody else than this library and PyTorch, which may do anything.
        draws: whether it draws random numbers in training.
        draws_tested: whether it does so in evaluation as well.
        joins_tested: whether in evaluation a row's output depends on the rows beside it (BatchNorm without running
            statistics, attention over rows), so that each client's rows are to be tested by themselves.
        changed: names of tensors that travel and that it changes itself in training, such as statistics of its own.
        start: what else it changes, as it was at first; that belongs to no client.
    """

    own: bool = False
    draws: bool = False
    draws_tested: bool = False
    joins_tested: bool = False
    changed: tuple[str, ...] = ()
    start: tuple[tuple[str, str, Any], ...] = ()

    @property
    def counters(self) -> list[str]:
        """Names of what the model counts or keeps statistics in; not of outputs that it only remembers."""
        rest = [(path, name) for path, name, value in self.start if value is not None and value is not _Mark.NOTHING]
        return [*self.changed, *(f"{path}.{name}".removeprefix(".") for path, name in rest)]

    def settle(self, model: nn.Module, live: dict[str, Tensor]) -> None:
        """After a call in training: the tensors that travel are again the objects that they were.

        Args:
            model: the module, which may have put other tensors in their place.
            live: the objects, by name.
        """
        for name in self.changed:
            path, _, attribute = name.rpartition(".")
            tensors = model.get_submodule(path)._buffers
            now = tensors.get(attribute)
            if now is not None and now is not live[name]:
                with torch.no_grad():
                    live[name].copy_(now)
                tensors[attribute] = live[name]

    def reset(self, model: nn.Module) -> None:
        """Put back what belongs to no client, as it was at first."""
        put_back(model, {(path, name): value for path, name, value in self.start})


def has_own_code(model: nn.Module) -> bool:
    """Whether a module, a part of it or a hook is code of somebody else than this library and PyTorch; layers of
    PyTorch whose draws cannot be given to them count as that.
    """
    for module in model.modules():
        if not type(module).__module__.startswith(("commonground.", "torch.nn.")) or isinstance(module, _DRAWING):
            return True
        if any(vars(module).get(hooks) for hooks in _HOOKS):
            return True
    return False


def held_generators(model: nn.Module) -> list[Any]:
    """Random generators that a module's parts hold, or the files that define them as global names."""
    found: dict[int, Any] = {}
    for module in model.modules():
        for space in (vars(module), _globals_of(type(module))):
            for value in list(space.values()):
                for one in value if type(value) in (list, tuple) else (value,):
                    if isinstance(one, GENERATORS):
                        found[id(one)] = one
    return list(found.values())


def _globals_of(cls: type) -> dict[str, Any]:
    """Global names of the file that defines a class, unless it is this library's or PyTorch's."""
    if cls.__module__.startswith(("commonground.", "torch.")):
        return {}
    code = getattr(getattr(cls, "forward", None), "__globals__", None)
    return code if isinstance(code, dict) else vars(sys.modules.get(cls.__module__, object))


def copied(model: nn.Module) -> nn.Module:
    """A copy of a module.

    Raises:
        ModelError: it cannot be copied.
    """
    with failing_as("the model cannot be copied (copy.deepcopy)"):
        return copy.deepcopy(model)


def held_by(model: nn.Module) -> Held:
    """See :data:`Held`."""
    return {(path, name): _copy(value) for path, name, value in _attributes(model)}


def _attributes(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for path, module in model.named_modules():
        for space in (vars(module), module._parameters, module._buffers):
            for name, value in space.items():
                if name != "training" and (value is None or isinstance(value, bool | int | float | str | Tensor)):
                    yield path, name, value


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def changes(model: nn.Module, before: Held) -> Held:
    """What a module held before and holds no more, or holds changed; what is new is there as a mark of nothing."""
    now = {(path, name): value for path, name, value in _attributes(model)}
    found = {key: value for key, value in before.items() if not _equal(value, now.get(key, _Mark.NOTHING))}
    return found | {key: _Mark.NOTHING for key in now if key not in before}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other.detach())
    return type(one) is type(other) and bool(one == other or one != one)


def put_back(model: nn.Module, held: Held) -> None:
    """Let a module hold again what it held."""
    for (path, name), value in held.items():
        module = model.get_submodule(path)
        if value is _Mark.NOTHING:
            vars(module).pop(name, None)
        elif name in module._parameters or name in module._buffers:
            space: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
            if isinstance(value, Tensor) and isinstance(space[name], Tensor) and space[name].shape == value.shape:
                with torch.no_grad():
                    space[name].copy_(value)
            else:
                space[name] = _copy(value)
        else:
            vars(module)[name] = _copy(value)


def named(model: nn.Module, held: Held) -> tuple[list[str], list[tuple[str, str, Any]]]:
    """Of what has changed outside of BatchNorm layers: the names of tensors that travel, and the rest.

    Raises:
        ModelError: a parameter has been replaced by something else.
    """
    travelling, rest = set(tensors_of(model)), []
    names = []
    for (path, name), value in held.items():
        whole = f"{path}.{name}".removeprefix(".")
        if isinstance(model.get_submodule(path), nn.modules.batchnorm._BatchNorm):
            continue  # the engines know these
        if whole in travelling:
            names.append(whole)
        elif name in model.get_submodule(path)._parameters:
            raise ModelError(f"the model's forward changes the parameter '{whole}', which no engine expects")
        else:
            rest.append((path, name, value))
    return names, rest
