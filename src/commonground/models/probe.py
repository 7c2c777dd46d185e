"""A copy of a model that can be asked what it does with rows, apart from rounding and from where its weights start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from commonground.models.behaviour import copied
from commonground.models.dropout import KeyedDropout

__all__ = ["Probe", "differ", "probes_of"]

MOVED = 0.05
"""By which share parameters are moved, and how far those that are zero."""


@dataclass(frozen=True)
class Probe:
    """A model to be asked.

    Attributes:
        model: a copy of the model. Dropout layers drop nothing.
        dtype: its number type.
        rounding: the largest share of a figure that may be rounding, where the same is computed in the same shapes.
    """

    model: nn.Module
    dtype: torch.dtype
    rounding: float

    def given(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inputs in its number type, anew: a forward may change what it is given."""
        return {n: v.to(self.dtype, copy=True) if v.is_floating_point() else v.clone() for n, v in inputs.items()}


def differ(one: Tensor, other: Tensor, share: float) -> bool:
    """Whether a figure is further from another one than this share of its largest number. Nothing is said of figures
    that are not finite, and one that alone is not finite is another one.
    """
    if not one.numel() or not bool(torch.isfinite(other).all()):
        return False
    return not bool((one - other).abs().max() <= share * other.abs().max())


def probes_of(model: nn.Module) -> Iterator[Probe]:
    """Probes of a model, of which the first that can be computed, with finite numbers, is to be believed.

    In double precision where its device has it: gradients of a deep model in single precision hang on the last digits
    of its weights. With parameters moved a little at random, each in its own sign: gates and heads that start at zero
    would hide what is behind them. Then with parameters as they are, and last in single precision, for a model that
    computes in that by itself.

    Raises:
        ModelError: the model cannot be copied.
    """
    device = next(model.parameters()).device
    if device.type != "mps":
        yield Probe(_moved(_quiet(model).double()), torch.float64, 1e-6)
        yield Probe(_quiet(model).double(), torch.float64, 1e-6)
    yield Probe(_quiet(model).float(), torch.float32, 1e-4)


def _quiet(model: nn.Module) -> nn.Module:
    again = copied(model)
    for layer in again.modules():
        if isinstance(layer, KeyedDropout):
            layer.mask = torch.ones((), dtype=layer.mask.dtype, device=layer.mask.device)
    return again


def _moved(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = MOVED * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype, device="cpu")
                noise = noise.to(parameter.device)
                parameter.copy_(torch.where(parameter == 0, noise, parameter * noise.exp()))
    return model
