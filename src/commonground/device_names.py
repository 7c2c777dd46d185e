"""How devices are called."""

from __future__ import annotations

import re

from commonground.errors import ConfigError
from commonground.suggest import meant

__all__ = ["check_device"]

KNOWN = "auto, cpu, cuda, cuda:INDEX and mps"


def check_device(text: str) -> int:
    """Refuse a text that names no device; whether there is one of this name is seen by PyTorch.

    Returns:
        The index of a GPU; 0 where none is said.

    Raises:
        ConfigError: says what is known.
    """
    # An index is written as PyTorch writes it, so that one device has one name.
    match = re.fullmatch(r"auto|cpu|mps|cuda(?::(0|[1-9][0-9]*))?", text, re.ASCII)
    if match is None:
        raise ConfigError(f"unknown device {text!r}{meant(text, ('auto', 'cpu', 'cuda', 'mps'))}; known are {KNOWN}")
    return int(match[1] or 0)
