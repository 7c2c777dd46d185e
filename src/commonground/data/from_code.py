"""Data made by a function of a user's own Python file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from commonground.data.federated import FederatedDataset
from commonground.data.source import Source
from commonground.errors import ConfigError
from commonground.user_code import call_user_code, load_object

__all__ = ["data_from_code"]

_WANTED = "a FederatedDataset, a Source or a list of (x_train, y_train, x_test, y_test)"


def data_from_code(text: str, given: Mapping[str, Any]) -> tuple[FederatedDataset | Source, frozenset[str]]:
    """What ``file.py:function`` returns.

    Args:
        text: names the function.
        given: keyword arguments, of which the function gets those that it has parameters for. None leaves a parameter
            its default. ``task`` is that of a list of arrays as well.

    Returns:
        The data, a list of arrays as a :class:`FederatedDataset`; and which of the arguments the function takes.

    Raises:
        ConfigError: there is no such function, it needs other arguments or one that is not given, it fails, or it
            returns something else.
        DataError: the arrays make no data set.
    """
    function = load_object(text, "data", "function")
    if not callable(function):
        raise ConfigError(f"the data '{text}' names a {type(function).__name__}, not a function that returns data")
    parameters = inspect.signature(function).parameters.values()
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for p in parameters:
        optional = p.default is not p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        if not optional and (p.name not in given or p.kind is p.POSITIONAL_ONLY):
            raise ConfigError(f"'{text}' needs the argument '{p.name}', which is none of {', '.join(given)}")
        if not optional and given[p.name] is None:
            raise ConfigError(f"'{text}' needs {p.name}, which is not given; give it, or its parameter a default")
    taken = frozenset(name for name in given if every or name in named)
    passed = {name: given[name] for name in taken if given[name] is not None}
    found = call_user_code(function, text, **passed)
    if isinstance(found, list | tuple):
        task = given.get("task") or "classification"
        return FederatedDataset.from_arrays(found, name=text.rpartition(":")[2], task=task), taken | {"task"}
    if not isinstance(found, FederatedDataset | Source):
        raise ConfigError(f"'{text}' returned a {type(found).__name__}; it must return {_WANTED}")
    return found, taken
