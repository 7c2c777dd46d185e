"""Values as they are written in a command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from commonground.errors import ConfigError

__all__ = ["assigned", "literal"]


def literal(text: str) -> Any:
    """A value as TOML would read it, else the text itself."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def assigned(assignments: Iterable[str]) -> dict[str, Any]:
    """What several ``--set KEY=VALUE`` say; the last of one key counts, as scripts append what they change.

    Raises:
        ConfigError: one is not of that form.
    """
    found: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {assignment} is not of the form KEY=VALUE")
        found[key] = literal(text)
    return found
