"""Algorithms by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from commonground.algorithms.base import Algorithm, registry, yardsticks
from commonground.catalogue import check_known
from commonground.errors import ConfigError, one_sentence
from commonground.models import load_class
from commonground.ranges import check_numbers
from commonground.suggest import meant

__all__ = ["make_algorithm"]


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
    known = cls.options()
    for option in options:
        if option not in known:
            raise ConfigError(
                f"{cls.title} has no setting '{option}'{meant(option, known)}; it has {', '.join(known) or 'none'}"
            )
    try:
        algorithm: Algorithm = TypeAdapter(cls).validate_python(dict(options))
    except ValidationError as error:
        raise ConfigError(f"{cls.title}: {one_sentence(error, known)}") from None
    check_numbers(vars(algorithm), cls.title)
    return algorithm
