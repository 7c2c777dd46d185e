"""How a pretrained model is adapted, ``model.rank`` and the like: of a model's options what may differ between methods.

What it reads and where it starts is equal for all of them, or they would not be compared on the same data and start.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from commonground.config import RunConfig
from commonground.errors import ConfigError
from commonground.models import is_pretrained
from commonground.models.lora_options import LoRAOptions
from commonground.suggest import meant

__all__ = ["ADAPTING", "OF_MODEL", "check_spelling", "is_adapting", "of_all", "without_defaults"]

OF_MODEL = "model."
"""How options of the model begin where a method or a grid names them."""

ADAPTING = ("rank", "alpha", "dropout", "target_modules", "layers", "rslora", "start")
"""Their names, of :class:`~commonground.models.lora_options.LoRAOptions`."""


def is_adapting(key: str) -> bool:
    """Whether a setting says how a pretrained model is adapted."""
    return key.startswith(OF_MODEL) and key.removeprefix(OF_MODEL) in ADAPTING


def check_spelling(key: str) -> None:
    """Refuse an option of the model that is nearly one of adapting it.

    Raises:
        ConfigError: says which was meant.
    """
    near = meant(key.removeprefix(OF_MODEL), ADAPTING) if key.startswith(OF_MODEL) else ""
    if near:
        raise ConfigError(f"'{key}' is no option by which a model is adapted{near}")


def of_all(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model's options those that are equal for all methods."""
    return {name: value for name, value in options.items() if name not in ADAPTING}


def without_defaults(config: RunConfig) -> dict[str, Any]:
    """A configuration's model options, those of adapting it that nobody named included: two that say the same are
    equal.
    """
    usual = {name: p.default for name, p in signature(LoRAOptions).parameters.items()}
    return {**(usual if is_pretrained(config.model) else {}), **config.model_options}
