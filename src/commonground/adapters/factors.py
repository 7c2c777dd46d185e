"""The factors of every adapted layer as peft holds them: one rank, one scale, and the update α/r · B A alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from commonground.algorithms import Tensors
from commonground.errors import ConfigError
from commonground.models.adapted import AdaptedModel
from commonground.models.lora import LoRALinear

__all__ = ["Factors", "peft_factors", "update_of"]


@dataclass(frozen=True)
class Factors:
    """All layers' factors.

    Attributes:
        rank: r, the same in every layer.
        alpha: α.
        rslora: whether the scale is α/√r.
        a, b: A [r, in] and B [out, r] by the layer's name in the base model.
        recovered: whether they were found by a singular value decomposition of a dense update.
    """

    rank: int
    alpha: float
    rslora: bool
    a: Tensors
    b: Tensors
    recovered: bool = False


def update_of(model: AdaptedModel, name: str, values: Tensors) -> Tensor:
    """An adapted layer's whole update ΔW [out, in] in float64, scale included.

    Args:
        model: gives the scale.
        name: the layer's, in the model.
        values: the model's tensors by name.
    """
    layer = model.get_submodule(name)
    assert isinstance(layer, LoRALinear)
    update = values[f"{name}.lora_B"].double() @ values[f"{name}.lora_A"].double()
    if f"{name}.merged" in values:
        update = update + values[f"{name}.merged"].double()
    return update * layer.scaling


def peft_factors(model: AdaptedModel, values: Tensors) -> Factors:
    """The factors of a model's tensors.

    FLoRA adds dense sums of products to the layers. They have no place in peft's format, but a sum of a few products is
    a product of a larger rank: its factors are recovered by a singular value decomposition, exact to rounding.

    Args:
        model: the adapted model.
        values: its tensors by name.

    Raises:
        ConfigError: a dense update has so large a rank that factors would be larger than the update itself.
    """
    names = {name: name.removeprefix("base.") for name in model.adapted}
    if not any(f"{name}.merged" in values for name in names):
        a = {short: values[f"{name}.lora_A"] for name, short in names.items()}
        b = {short: values[f"{name}.lora_B"] for name, short in names.items()}
        return Factors(model.options.rank, model.options.alpha, model.options.rslora, a, b)
    found = {short: _recover(short, update_of(model, name, values)) for name, short in names.items()}
    rank = max(a.shape[0] for a, _ in found.values())
    dtype = values[f"{model.adapted[0]}.lora_A"].dtype
    a = {n: torch.cat([a, a.new_zeros(rank - len(a), a.shape[1])]).to(dtype) for n, (a, _) in found.items()}
    b = {n: torch.cat([b, b.new_zeros(len(b), rank - b.shape[1])], 1).to(dtype) for n, (_, b) in found.items()}
    return Factors(rank, float(rank), False, a, b, recovered=True)


def _recover(name: str, update: Tensor) -> tuple[Tensor, Tensor]:
    """A [r, in] and B [out, r] with B A = ΔW, r its numerical rank in single precision."""
    rows, columns = update.shape
    u, s, v = torch.linalg.svd(update, full_matrices=False)
    rank = max(1, int((s > s[0] * max(rows, columns) * torch.finfo(torch.float32).eps).sum()))
    if rank * (rows + columns) > rows * columns:
        raise ConfigError(
            f"the merged update of the layer '{name}' has rank {rank}, so that its factors would be larger than the "
            f"{rows} × {columns} weights themselves; export the merged model with --merge"
        )
    root = s[:rank].sqrt()
    assert math.isfinite(float(root.sum()))
    return root.unsqueeze(1) * v[:rank], u[:, :rank] * root
