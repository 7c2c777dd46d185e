"""Which device computes."""

from __future__ import annotations

import re

import torch

from commonground.errors import ConfigError

__all__ = ["resolve_device"]


def resolve_device(text: str) -> torch.device:
    """The device a setting names.

    Args:
        text: ``auto`` (the first CUDA device if there is one, else the CPU), ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.

    Raises:
        ConfigError: it names no device, or one that this machine does not have.
    """
    if text == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    match = re.fullmatch(r"cpu|mps|cuda(?::(\d+))?", text)
    if match is None:
        raise ConfigError(f"the device is {text!r}; it is auto, cpu, cuda, cuda:NUMBER or mps")
    if text == "cpu":
        return torch.device("cpu")
    if text == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError("the device is mps, and this machine (or this build of PyTorch) has none; take cpu")
        return torch.device("mps")
    number, found = int(match[1] or 0), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number >= found:
        there = f"{found} of them" if found else "none"
        raise ConfigError(f"the device is {text}, and this machine (or this build of PyTorch) has {there}; take cpu")
    return torch.device("cuda", number)
