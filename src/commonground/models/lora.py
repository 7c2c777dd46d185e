"""LoRA layers of our own: one client's factors, or those of many clients side by side.

They read a peft ``LoraConfig`` and save as one, but hold the factors so that a batch of rows of several clients goes
through the frozen weight once while every row meets its own client's factors (``Fold``). With peft's names

    y = W x + (α/r) · B A x,    A: [r, in], B: [out, r],

which is the transpose of Chen et al.'s ΔW = A B (RoLoRA, Section 3.1): their A, the down-projection, is A here. B
starts at zero, so training starts from the pretrained model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from commonground.data.inputs import to_device
from commonground.errors import ConfigError, ModelError
from commonground.models.dropout import KeyedDropout
from commonground.models.groups import set_constants, set_groups
from commonground.models.packing import Packing

__all__ = ["Fold", "FoldedLinear", "LoRALinear", "SequenceDropout", "Start", "adapt_linear_layers"]

Start = Literal["kaiming", "gaussian"]


class Fold:
    """Which client each row of a batch belongs to, known to all layers of a model.

    Attributes:
        route: [rows] on the host, positions on the leading axis of stacked factors; None while no row is to meet any.
        packing: which tokens the layers are given, while they are given tokens laid end to end.
    """

    def __init__(self) -> None:
        self.route: Tensor | None = None
        self.packing: Packing | None = None
        self._owners: tuple[Packing, tuple[Tensor, Tensor, Tensor]] | None = None
        self._moved: tuple[Tensor, Tensor] | None = None

    @contextmanager
    def packed(self, packing: Packing) -> Iterator[None]:
        """While open, layers are given these tokens laid end to end [1, T, …]."""
        before, self.packing = self.packing, packing
        try:
            yield
        finally:
            self.packing = before

    def owners(self) -> tuple[Tensor, Tensor, Tensor]:
        """See :meth:`Packing.by_owner`, for the packing at hand."""
        assert self.packing is not None
        assert self.route is not None
        if self._owners is None or self._owners[0] is not self.packing:
            self._owners = self.packing, self.packing.by_owner(self.route)
        return self._owners[1]

    def rows(self, factor: Tensor, dims: int) -> Tensor:
        """A factor as rows meet it: itself if it is common to all, else one per row."""
        if factor.ndim == dims or self.route is None:
            return factor
        if self._moved is None or self._moved[0] is not self.route or self._moved[1].device != factor.device:
            self._moved = self.route, to_device(self.route, factor.device)
        return factor.index_select(0, self._moved[1])


def _apply(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ for a common weight [out, in] or one per row [rows, out, in]; x is [rows, …, in]."""
    if weight.ndim == 2:
        return x @ weight.T
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    return torch.bmm(flat, weight.mT).view(*x.shape[:-1], weight.shape[1])


class SequenceDropout(KeyedDropout):
    """Keyed dropout on [rows, positions, …] of varying length.

    Masks are drawn position after position, so that a mask for shorter rows is the beginning of one for longer rows:
    who draws for a batch's longest row drops what everybody else does.

    Args:
        p: probability of zeroing a unit.
        sample_shape: of one sample of full length.
    """

    def __init__(self, p: float, sample_shape: tuple[int, ...]) -> None:
        super().__init__(p)
        self.sample_shape = sample_shape

    def draw(self, rows: int, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """See :meth:`KeyedDropout.draw`; ``shape`` may be of fewer positions than ``sample_shape``."""
        return super().draw(shape[0], (rows, *shape[1:]), generator, dtype).transpose(0, 1)

    def forward(self, x: Tensor, packing: Packing | None = None) -> Tensor:
        """See :class:`KeyedDropout`; with a packing, x holds its tokens laid end to end."""
        if not self.training or self.p == 0:
            return x
        if packing is not None:
            return x * packing.pack(self.mask)
        return x * (self.mask[:, : x.shape[1]] if x.ndim == 3 else self.mask[:, 0])


class LoRALinear(nn.Module):
    """A frozen linear layer with a trained low-rank update.

    Args:
        base: the layer; its weights stay as they are.
        rank: r, at most the smaller side of the layer.
        alpha: α; the update is scaled by α/r (α/√r with ``rslora``).
        dropout: probability of dropping an input of the update.
        longest: tokens in the longest row, for dropout masks.
        rslora: rank-stabilised scaling.
        start: how A is drawn: ``kaiming`` is peft's own default, U(−1/√in, 1/√in); ``gaussian`` N(0, 1/in), the small
            Gaussian that RoLoRA's claims need (peft's own "gaussian" is N(0, 1/r²), larger).
        fold: shared with the other layers of the model.

    Raises:
        ConfigError: the rank exceeds a side of the layer.
    """

    def __init__(
        self,
        base: nn.Linear,
        rank: int,
        alpha: float,
        *,
        dropout: float = 0.0,
        longest: int = 1,
        rslora: bool = False,
        start: Start = "kaiming",
        fold: Fold | None = None,
    ) -> None:
        super().__init__()
        most = min(base.in_features, base.out_features)
        if not 1 <= rank <= most:
            raise ConfigError(
                f"the rank {rank} does not fit a layer of {base.in_features} to {base.out_features} numbers; it must "
                f"be 1 to {most}"
            )
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / (math.sqrt(rank) if rslora else rank)
        self.dropout = SequenceDropout(dropout, (longest, base.in_features))
        self.fold = fold or Fold()
        self.merged: Tensor | None = None
        self.start = start
        self._draw()

    def _draw(self) -> None:
        """A anew."""
        if self.start == "gaussian":
            nn.init.normal_(self.lora_A, std=self.base.in_features**-0.5)
        else:
            nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def keep_merged(self) -> None:
        """Have a dense matrix [out, in], zero at first, that is added to the update B A (before its scaling)."""
        del self.merged
        shape = (self.base.out_features, self.base.in_features)
        self.register_buffer("merged", torch.zeros(shape, dtype=self.lora_A.dtype, device=self.lora_A.device))

    def merge(self) -> None:
        """Move an update B A that is not zero into the dense matrix: B is zero then, and A drawn anew."""
        if self.merged is None or not bool(self.lora_B.any()):
            return
        with torch.no_grad():
            self.merged += self.lora_B @ self.lora_A
            self.lora_B.zero_()
        self._draw()

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [rows, …, in] to outputs [rows, …, out]."""
        y: Tensor = self.base(x)
        if self.merged is not None:
            y = y + (self._update(x.to(self.merged.dtype), self.merged) * self.scaling).to(y.dtype)
        inner = self.dropout(x, self.fold.packing).to(self.lora_A.dtype)
        return y + (self._update(inner, self.lora_A, self.lora_B) * self.scaling).to(y.dtype)

    def _update(self, x: Tensor, *weights: Tensor) -> Tensor:
        """x through these weights one after the other, those of every row's own client where they differ."""
        fold = self.fold
        if fold.packing is None or fold.route is None or all(w.ndim == 2 for w in weights):
            for weight in weights:
                x = _apply(x, fold.rows(weight, 2))
            return x
        owners, index, place = fold.owners()
        x = x[0][index]
        for weight in weights:
            x = _apply(x, weight if weight.ndim == 2 else weight[owners])
        return x.flatten(0, 1)[place].unsqueeze(0)


def adapt_linear_layers(model: nn.Module, head: Collection[str], rank: int, alpha: float) -> dict[str, tuple[str, ...]]:
    """Put LoRA factors into a module of the user's own, in place: every ``nn.Linear`` but the head gets a pair.

    All other weights become constants, which never travel; so do those of ``nn.MultiheadAttention``, which multiplies
    by its weights itself and calls no linear layer.

    Args:
        model: any module.
        head: names of the head's tensors, which stay trained.
        rank: r, cut to the smaller side of a layer.
        alpha: α.

    Returns:
        The parameter groups ``lora_A``, ``lora_B``, ``body`` (both) and ``head``.

    Raises:
        ModelError: there is no linear layer besides the head.
    """
    linear = {n: m for n, m in model.named_modules() if type(m) is nn.Linear and n and f"{n}.weight" not in head}
    if not linear:
        raise ModelError("the model has no linear layer besides its head that LoRA factors could be put into")
    for name, layer in linear.items():
        parent, _, child = name.rpartition(".")
        fitting = min(rank, layer.in_features, layer.out_features)
        setattr(model.get_submodule(parent), child, LoRALinear(layer, fitting, alpha * fitting / rank))
    _leave_fast_path(model)
    factors = {f: tuple(f"{name}.{f}" for name in linear) for f in ("lora_A", "lora_B")}
    trained = {*factors["lora_A"], *factors["lora_B"], *head}
    constants = [n for n in model.state_dict() if n not in trained]
    groups = {**factors, "body": (*factors["lora_A"], *factors["lora_B"]), "head": tuple(head)}
    set_constants(model, constants)
    set_groups(model, groups)
    return groups


def _leave_fast_path(model: nn.Module) -> None:
    """Have PyTorch call an encoder's linear layers in tests as it does in training.

    Its fast path of :class:`torch.nn.TransformerEncoderLayer` reads the weights of these layers, which knows of no
    factors. It is left where the activation has no kernel there, as is said here of every activation.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


class FoldedLinear(nn.Linear):
    """A trained linear layer (a task head) that knows stacked weights as :class:`LoRALinear` does."""

    fold: Fold

    @classmethod
    def of(cls, layer: nn.Linear, fold: Fold) -> FoldedLinear:
        """The same layer, sharing its weights."""
        folded = cls(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        folded.weight, folded.bias = layer.weight, layer.bias
        folded.fold = fold
        return folded

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [rows, …, in] to outputs [rows, …, out]."""
        weight = self.fold.rows(self.weight, 2)
        if weight.ndim == 2 and (self.bias is None or self.bias.ndim == 1):
            return nn.functional.linear(x.to(weight.dtype), weight, self.bias)
        y = _apply(x.to(weight.dtype), weight)
        if self.bias is None:
            return y
        bias = self.fold.rows(self.bias, 1)
        return y + (bias if bias.ndim == 1 else bias.view(bias.shape[0], *[1] * (x.ndim - 2), bias.shape[1]))
