"""A copy of a model that can be asked what it does with rows, apart from rounding and from where its weights start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from commonground.models.behaviour import copied
from commonground.models.dropout import KeyedDropout

__all__ = ["Probe", "probes_of"]

MOVED = 0.05
"""Standard deviation of what is added to the parameters."""


@dataclass(frozen=True)
class Probe:
    """A model to be asked.

    Attributes:
        model: a copy of the model, with its parameters moved a little at random: gates and heads that start at zero
            would hide what is behind them. Dropout layers drop nothing.
        rounding: the largest share of a figure that may be rounding.
        exact: whether it computes in double precision, so that gradients can be compared too: those of a deep model in
            single precision hang on the last digits of its weights.
    """

    model: nn.Module
    rounding: float
    exact: bool

    def given(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inputs in its number type, anew: a forward may change what it is given."""
        dtype = torch.float64 if self.exact else torch.float32
        return {name: v.to(dtype, copy=True) if v.is_floating_point() else v.clone() for name, v in inputs.items()}

    def differ(self, one: Tensor, other: Tensor, scale: Tensor | None = None) -> bool:
        """Whether two figures differ by more than rounding, or one of them is finite and the other is not.

        Args:
            one, other: of the same shape.
            scale: whose largest number rounding is a share of; by default ``other``.
        """
        if not one.numel():
            return False
        if not bool(torch.isfinite(other).all()):
            return False  # nothing can be said of it
        largest = (other if scale is None else scale).abs().max()
        return not bool((one - other).abs().max() <= self.rounding * largest)


def probes_of(model: nn.Module) -> Iterator[Probe]:
    """Probes of a model: in double precision where its device has it, and in single precision for a model that computes
    in that by itself. The first that can be computed is to be believed.

    Raises:
        ModelError: the model cannot be copied.
    """
    device = next(model.parameters()).device
    if device.type != "mps":
        yield Probe(_moved(model).double(), 1e-6, True)
    yield Probe(_moved(model).float(), 1e-2, False)


def _moved(model: nn.Module) -> nn.Module:
    again = copied(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in again.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64, device="cpu")
                parameter.add_(MOVED * noise.to(parameter.device, parameter.dtype))
    for layer in again.modules():
        if isinstance(layer, KeyedDropout):
            layer.mask = torch.ones((), dtype=layer.mask.dtype, device=layer.mask.device)
    return again
