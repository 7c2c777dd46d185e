"""A device that is not there: tensors on the CPU that behave as if they were on a GPU, so that code is tried for one.

Inside :class:`Elsewhere`, what is put on ``ELSEWHERE`` keeps its numbers and says that it is there. What would fail on
a GPU fails here: tensors of two devices in one operation (a tensor without axes, and an index on the CPU, may be beside
others), NumPy on a tensor that was not fetched, a driver only the CPU has. Beyond that, every factory call has to name
its device, and matrix products and factorisations have to be done elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

ELSEWHERE = torch.device("meta")  # the name of the device; nothing is ever put on PyTorch's own

FACTORIES = {
    torch.arange, torch.as_tensor, torch.empty, torch.eye, torch.full, torch.linspace, torch.logspace, torch.ones,
    torch.rand, torch.randint, torch.randn, torch.randperm, torch.tensor, torch.zeros,
}  # fmt: skip

PRODUCTS = {"__matmul__", "__rmatmul__", "matmul", "mm", "bmm"}
FETCHED = {"linalg_lstsq"}  # the few singular problems of least_squares, which need a driver of the CPU


class Away(torch.Tensor):
    """A tensor elsewhere; so is what is computed from it."""


class Elsewhere(TorchFunctionMode):
    """The machine with that device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        first: Any = args[0] if args else None
        if func == torch.Tensor.device.__get__:
            return ELSEWHERE if isinstance(first, Away) else func(*args)
        name = getattr(func, "__name__", str(func))
        if func in FACTORIES and kwargs.get("device") is None:
            raise AssertionError(f"torch.{name} without a device")
        if isinstance(first, Away) and name in ("numpy", "__array__"):
            raise TypeError("can't convert a tensor elsewhere to numpy: fetch it with cpu() first")
        if name == "linalg_lstsq" and isinstance(first, Away) and kwargs.get("driver") not in (None, "gels"):
            raise RuntimeError(f"the driver {kwargs['driver']} is on the CPU only")
        if name == "cpu":
            return _here(first)
        if name == "to" and isinstance(first, torch.Tensor):
            return self._to(first, *args[1:], **kwargs)
        self._check_devices(name, args, kwargs)
        if kwargs.get("device") is None:
            return func(*args, **kwargs)
        away = torch.device(kwargs["device"]) == ELSEWHERE
        result = func(*args, **{**kwargs, "device": "cpu"})
        return result.as_subclass(Away) if away else _here(result)

    @staticmethod
    def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        wanted = [a for a in (*args, kwargs.get("device")) if isinstance(a, torch.device | str)]
        rest = [a for a in args if not isinstance(a, torch.device | str)]
        assert not any(isinstance(a, torch.Tensor) for a in rest), "to(other) is not simulated"
        result = tensor.to(*rest, **{k: v for k, v in kwargs.items() if k != "device"}) if rest else tensor
        if not wanted:
            return result
        return result.as_subclass(Away) if torch.device(wanted[0]) == ELSEWHERE else _here(result)

    @staticmethod
    def _check_devices(name: str, args: Any, kwargs: Any) -> None:
        if name == "__getitem__" and isinstance(args[0], Away):
            return  # an index may be on the CPU
        if name == "__setitem__":
            args = (args[0], args[2])
        tensors = list(_tensors((args, kwargs)))
        away = [t for t in tensors if isinstance(t, Away)]
        if away and any(not isinstance(t, Away) and t.ndim > 0 for t in tensors):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found two")
        if tensors and not away and (name in PRODUCTS or name.startswith("linalg_")) and name not in FETCHED:
            raise AssertionError(f"{name} was done on the CPU")


def _here(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
