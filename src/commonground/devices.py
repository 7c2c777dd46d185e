"""Which device to compute on: from what a user writes to a device that is there."""

from __future__ import annotations

import torch

from commonground.device_names import check_device
from commonground.errors import ConfigError

__all__ = ["check_precision", "resolve_device", "use_precision"]


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


def check_precision(precision: str, dtype: str, device: torch.device) -> None:
    """Refuse a precision that a device does not have, or that numbers of another type leave no room for.

    Raises:
        ConfigError: TF32 is a format of CUDA devices, or products of float64 shall be of fewer digits.
    """
    if precision != "fp32" and dtype != "float32":
        raise ConfigError(
            f"--precision {precision} is how products of float32 are computed, and --dtype is {dtype}; leave out one"
        )
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError(f"the precision tf32 is one of CUDA devices, and this run computes on {device}; take fp32")


def use_precision(precision: str) -> None:
    """Let this process compute products of float32 matrices on CUDA devices in TF32, or strictly in float32."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
