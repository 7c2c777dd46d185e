"""What a user's loss or penalty takes along from the code around it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from commonground.algorithms import Tensors
from commonground.errors import ModelError
from commonground.quoting import quoted

__all__ = ["refuse_stacked", "taken_along"]

_DEEPEST = 6  # functions and containers within one another


def taken_along(function: Callable[..., Any]) -> Iterator[tuple[str, str, Tensor]]:
    """Tensors in a function's closure, its defaults, what it is partially applied to and what its object holds.

    Returns:
        The variable, the key if it is a mapping (else empty), and the tensor.
    """
    yield from _of_function(function, _DEEPEST)


def _of_function(function: Any, depth: int) -> Iterator[tuple[str, str, Tensor]]:
    if not depth:
        return
    if isinstance(function, partial):
        yield from _of_function(function.func, depth - 1)
        for value in function.args:
            yield from _of_value("an argument", "", value, depth)
        for name, value in function.keywords.items():
            yield from _of_value(name, "", value, depth)
        return
    if isinstance(function, MethodType):
        yield from _of_object(function.__self__, depth - 1)
        function = function.__func__
    if not isinstance(function, FunctionType):
        if callable(function):
            yield from _of_object(function, depth - 1)
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not set yet
            continue
        yield from _of_value(name, "", value, depth)
    for value in function.__defaults__ or ():
        yield from _of_value("a default", "", value, depth)
    for name, value in (function.__kwdefaults__ or {}).items():
        yield from _of_value(name, "", value, depth)


def _of_object(value: Any, depth: int) -> Iterator[tuple[str, str, Tensor]]:
    """What an object of the user's holds that is called like a function, or whose method is."""
    if isinstance(value, type | nn.Module) or type(value).__module__.split(".")[0] in ("commonground", "torch"):
        return  # a class, weights that are a module's own, or the client itself, which answers for one
    for name, each in getattr(value, "__dict__", {}).items():
        yield from _of_value(name, "", each, depth)


def _of_value(variable: str, key: str, value: Any, depth: int) -> Iterator[tuple[str, str, Tensor]]:
    if isinstance(value, Tensor):
        yield variable, key, value
    elif depth and isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _of_value(variable, str(inner), each, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for each in value:
            yield from _of_value(variable, key, each, depth - 1)
    else:
        yield from _of_function(value, depth - 1)


def refuse_stacked(
    what: str,
    function: Callable[..., Any] | None,
    clients: int,
    declared: Tensors,
    given: Collection[torch.Size],
    steps: Tensor | None = None,
) -> None:
    """Refuse a loss or penalty that takes along a tensor of all clients: it sees one client at a time, and the other
    clients' parts would be broadcast into it.

    Which tensor is one of all clients is told by its name and dimensions, and without a name by its shape, which what
    was computed of such a tensor mostly keeps.

    Args:
        what: ``loss`` or ``penalty``.
        function: it.
        clients: how many are stacked.
        declared: tensors by name as one client has them.
        given: shapes of the stacked tensors that the method was given in this round.
        steps: how many each client trained, which has a shape that other things may well have.

    Raises:
        ModelError: names the variable.
    """
    if function is None or clients == 1:
        return
    for variable, key, value in taken_along(function):
        own = declared.get(key)
        if value is steps or (value.shape in given if own is None else value.ndim > own.ndim):
            raise ModelError(
                f"the {what} takes along {quoted(variable)}, a tensor of all {clients} clients, and sees one client at "
                "a time: let it take what it needs from its arguments (what client.keep keeps is in own), or ask the "
                "client inside it (client.get); or take --engine serial"
            )
