"""Values as they are written in a command line."""

from __future__ import annotations

import tomllib
from typing import Any

from commonground.errors import ConfigError

__all__ = ["assigned", "literal"]


def literal(text: str) -> Any:
    """A value as TOML would read it, else the text itself."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def assigned(assignment: str) -> tuple[str, Any]:
    """The two sides of ``--set KEY=VALUE``.

    Raises:
        ConfigError: it is not of that form.
    """
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {assignment} is not of the form KEY=VALUE")
    return key, literal(text)
