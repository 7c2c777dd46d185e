"""Algorithms by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from commonground.algorithms.base import Algorithm, registry, yardsticks
from commonground.catalogue import check_known, check_settings
from commonground.errors import ConfigError, one_sentence
from commonground.models import load_class
from commonground.ranges import check_numbers

__all__ = ["check_methods", "check_object", "make_algorithm"]


_ROUNDS = {"client_update": 2, "server_update": 3}  # what an engine gives to a method's two halves


def check_methods(cls: type[Algorithm], known_by: Sequence[str] = ("title",)) -> None:
    """Refuse a class that lacks a half of a round, or whose halves take something else than an engine gives.

    Args:
        cls: the class.
        known_by: what it has to be called by: an object, which no file names, by its ``name`` as well.

    Raises:
        ConfigError: names the method and its parameters.
    """
    for name in known_by:
        called = getattr(cls, name, None)
        if not isinstance(called, str) or not called.strip():
            raise ConfigError(f'the algorithm {cls.__name__} lacks its {name}; write {name} = "…" in the class')
    for name, count in _ROUNDS.items():
        right = inspect.signature(getattr(Algorithm, name))
        form = f"def {name}({', '.join(right.parameters)})"
        if name in cls.__abstractmethods__:
            raise ConfigError(f"the algorithm {cls.__name__} has no {form}, a client's round")
        try:
            inspect.signature(getattr(cls, name)).bind(None, *range(count))
        except TypeError:
            own = ", ".join(inspect.signature(getattr(cls, name)).parameters)
            raise ConfigError(f"the algorithm {cls.__name__} has {name}({own}) in place of {form}") from None


def make_algorithm(name: str, options: Mapping[str, Any]) -> Algorithm:
    """An algorithm by name, or from ``file.py:Class``, with its hyperparameters checked.

    Raises:
        ConfigError: unknown name or hyperparameter, or a value of the wrong type.
    """
    alone, _, settings = name.partition(":")
    named = registry | yardsticks
    if settings and alone in named:
        raise ConfigError(
            f"'{name}' is how a comparison names a method; one run takes '{alone}' alone, and its hyperparameters by "
            "--set KEY=VALUE"
        )
    if ":" in name:
        cls: type[Algorithm] = load_class(name, Algorithm, "algorithm")
    else:
        check_known("algorithm", name, named)
        cls = named[name]
    check_methods(cls)
    known = cls.options()
    check_settings(cls.title, options, known)
    try:
        algorithm: Algorithm = _made(cls, dict(options))
    except ValidationError as error:
        raise ConfigError(f"{cls.title}: {one_sentence(error, known)}") from None
    for name, value in options.items():  # which Pydantic takes for 1 and 0
        if isinstance(value, bool) and type(getattr(algorithm, name, value)) in (int, float):
            raise ConfigError(f"{cls.title}: '{name}' is {value}: a number is needed, not a truth value")
    check_numbers(vars(algorithm), cls.title)
    return algorithm


def check_object(algorithm: Algorithm) -> None:
    """Refuse hyperparameters of a method that was made in Python, as :func:`make_algorithm` refuses them.

    Raises:
        ConfigError: names the first that is out of range, or of another type.
    """
    cls = type(algorithm)
    check_methods(cls)
    check_numbers(vars(algorithm), algorithm.title)
    names = [one.name for one in fields(algorithm)]
    given = {name: value for name, value in vars(algorithm).items() if name in names}
    if len(given) < len(names):
        return  # some are kept under names of the class's own
    try:
        _adapter(cls).validate_python(given)
    except ValidationError as error:
        raise ConfigError(f"{algorithm.title}: {one_sentence(error, given)}") from None
    except (PydanticUserError, NameError, TypeError):  # annotations that say nothing to Pydantic
        pass


@cache
def _adapter(cls: type[Algorithm]) -> TypeAdapter[Algorithm]:
    """Milliseconds of work, which a program that makes many methods does once."""
    return TypeAdapter(cls)


def _made(cls: type[Algorithm], options: dict[str, Any]) -> Algorithm:
    """An object of a class; the text ``none`` is nothing where a text will not do, as a command line has no other."""
    make = _adapter(cls).validate_python
    try:
        made: Algorithm = make(options)
    except ValidationError as error:
        wrong = {str(each["loc"][0]) for each in error.errors()}
        nothing = {name for name in wrong if str(options.get(name)).lower() == "none"}
        if not nothing:
            raise
        try:
            made = make(options | dict.fromkeys(nothing))
        except ValidationError:
            raise error from None
    return made
