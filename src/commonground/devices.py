"""Which device to compute on: from what a user writes to a device that is there."""

from __future__ import annotations

import torch
from torch import Tensor

from commonground.device_names import check_device
from commonground.errors import ConfigError

__all__ = ["device_bytes_free", "resolve_device", "wide"]


def resolve_device(text: str) -> torch.device:
    """The device a text names.

    Args:
        text: ``auto`` (the first CUDA GPU, or the CPU where there is none), ``cpu``, ``cuda`` (the first GPU),
            ``cuda:INDEX``, or ``mps`` (Apple's GPUs: only when asked for, since they have no float64).

    Returns:
        A device that exists on this machine; a GPU with its index, so that it equals its tensors' ``device``.

    Raises:
        ConfigError: the text names no device, or one that PyTorch does not see here.
    """
    index = check_device(text)
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    if text == "cpu":
        return torch.device("cpu")
    if text == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError("the device is 'mps', but PyTorch sees no Apple GPU here; use cpu or auto")
        return torch.device("mps", 0)
    if not torch.cuda.is_available():
        raise ConfigError(f"the device is '{text}', but PyTorch sees no CUDA GPU here; use cpu or auto")
    count = torch.cuda.device_count()
    if index >= count:
        raise ConfigError(f"the device is '{text}', but PyTorch sees {_gpus(count)} here")
    return torch.device("cuda", index)


def _gpus(count: int) -> str:
    return "one CUDA GPU (cuda:0)" if count == 1 else f"{count} CUDA GPUs (cuda:0 to cuda:{count - 1})"


def device_bytes_free(device: torch.device) -> int | None:
    """Bytes that are free on a CUDA device, with those that PyTorch holds there for what comes; None on others."""
    if device.type != "cuda":
        return None
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held


def wide(value: Tensor) -> Tensor:
    """A tensor in double precision, in which 1e30 has a square, where its device has it: Apple's GPUs have not."""
    return value.float() if value.device.type == "mps" else value.double()
