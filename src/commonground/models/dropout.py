"""Dropout whose masks are drawn by key, so that every engine drops the same units."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from commonground.errors import ModelError

__all__ = ["KeyedDropout", "use_keyed_dropout"]


class KeyedDropout(nn.Module):
    """Dropout that multiplies by a mask it is given instead of drawing one.

    The engine writes ``mask`` (shape of the input, values 0 or 1/(1-p)) before each training step. The mask is a
    buffer, so a stacked cohort can hand in one mask per client; it is not persistent, so it never travels.

    Args:
        p: probability of zeroing a unit.

    Attributes:
        alone: whether a call of the model uses the layer once at most, so that one mask is enough. A layer that is used
            several times draws its masks itself, from PyTorch's global generator.
    """

    mask: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.alone = True
        self.register_buffer("mask", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Input of any shape; in evaluation mode, or with p = 0, the input itself."""
        if not (self.training and self.p > 0):
            return x
        return x * self.mask if self.alone else F.dropout(x, self.p, True)

    def draw(self, rows: int, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """A fresh mask [rows, *shape]."""
        keep = torch.rand((rows, *shape), generator=generator, device="cpu") >= self.p
        return keep.to(dtype) / (1.0 - self.p)

    def extra_repr(self) -> str:
        """For ``print(model)``."""
        return f"p={self.p}"


def use_keyed_dropout(model: nn.Module) -> nn.Module:
    """Replace every ``nn.Dropout`` inside a model by :class:`KeyedDropout` (in place) and return the model.

    Raises:
        ModelError: a layer draws from PyTorch's global generator in a way that has no keyed counterpart.
    """
    replaced: dict[nn.Module, KeyedDropout] = {}  # one layer under two names stays one layer
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if type(child) is nn.Dropout:
                module._modules[name] = replaced.setdefault(child, KeyedDropout(child.p))
    for name, module in model.named_modules():
        inner = getattr(module, "dropout", 0.0)  # of nn.LSTM, nn.MultiheadAttention and the like
        if isinstance(module, nn.modules.dropout._DropoutNd) or (isinstance(inner, int | float) and inner > 0):
            raise ModelError(
                f"the layer '{name}' ({type(module).__name__}) draws numbers that no seed keys; use nn.Dropout, or set "
                "its dropout to 0"
            )
    return model
