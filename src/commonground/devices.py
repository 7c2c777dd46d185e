"""Which device computes."""

from __future__ import annotations

import re

import torch

from commonground.errors import ConfigError

__all__ = ["check_precision", "resolve_device", "use_precision"]


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


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that a device does not have.

    Raises:
        ConfigError: TF32 is a format of CUDA devices.
    """
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError(f"the precision tf32 is one of CUDA devices, and this run computes on {device}; take fp32")


def use_precision(precision: str) -> None:
    """Let this process compute products of float32 matrices on CUDA devices in TF32, or strictly in float32."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
