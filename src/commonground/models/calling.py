"""Giving a module its inputs, whatever it wants them to look like."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from commonground.errors import ModelError

__all__ = ["arguments", "call"]


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
