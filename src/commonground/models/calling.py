"""Giving a module its inputs, whatever it wants them to look like."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.func import functional_call

from commonground.errors import ModelError
from commonground.models.groups import aliases_of

__all__ = ["arguments", "call", "call_with"]

_ALIASES: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()
"""Of modules that were called; a module is tied when it is made."""


def arguments(module: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments with which a module takes a batch.

    One input is given as it is; several by name if the module's ``forward`` has parameters of all these names (or takes
    any), else as one dict.

    Args:
        module: any module.
        inputs: one tensor, or tensors by name.

    Raises:
        ModelError: the module takes several inputs, of other names.
    """
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if set(inputs) == {"x"}:
        return (inputs["x"],), {}
    parameters = inspect.signature(module.forward).parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if named.issuperset(inputs) or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return (), dict(inputs)
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if len(needed) > 1:
        raise ModelError(
            f"the data's inputs are {', '.join(inputs)}, and the model's forward takes "
            f"{', '.join(p.name for p in needed)}; they must have the same names (or it takes one dict)"
        )
    return (dict(inputs),), {}


def call(module: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> Any:
    """What a module returns for a batch (see :func:`arguments`)."""
    args, named = arguments(module, inputs)
    return module(*args, **named)


def call_with(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor | Mapping[str, Tensor]) -> Any:
    """What a module returns for a batch with other tensors in place of its own.

    Args:
        module: any module.
        tensors: by the names of :func:`~commonground.models.tensors_of`; a tied tensor is put in all its places.
        inputs: as of :func:`arguments`.
    """
    args, named = arguments(module, inputs)
    if (also := _ALIASES.get(module)) is None:
        also = _ALIASES[module] = aliases_of(module)
    if not also:
        return functional_call(module, dict(tensors), args, named)
    # PyTorch ties by names, and would not put back what a submodule holds that has two names itself.
    more = {alias: tensors[name] for alias, name in also.items() if name in tensors and _apart(module, alias, name)}
    return functional_call(module, {**tensors, **more}, args, named, tie_weights=False)


def _apart(module: nn.Module, alias: str, name: str) -> bool:
    """Whether two names of a tensor are places in two submodules or two attributes of one."""
    one, other = ((module.get_submodule(n.rpartition(".")[0]), n.rpartition(".")[2]) for n in (alias, name))
    return one != other
