"""BatchNorm, recurrent and embedding layers of many clients at once, with forwards that ``torch.func`` can map over
clients.

PyTorch's own cannot be mapped: batch statistics would count the padding of clients whose batch is shorter, there is no
rule for its recurrent kernels, and the one for embeddings forgets that a padding index has no gradient. Each forward
here computes, for one client, what the layer's own computes for that client's rows alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import PackedSequence

from commonground.errors import LoneSampleError, ModelError

__all__ = ["stackable_layers", "why_not_stackable"]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
_SPECIAL: WeakKeyDictionary[nn.Module, list[nn.Module]] = WeakKeyDictionary()
"""The layers of a module that need another forward; looked up at every step of training."""


def why_not_stackable(name: str, module: nn.Module, folded: bool = False) -> str | None:
    """A sentence's part that says why a layer cannot be computed for stacked clients; None if it can.

    Args:
        name: of the layer in its model.
        module: the layer.
        folded: whether all clients' rows go through the model as one batch.
    """
    if folded and isinstance(module, _BatchNorm | nn.RNNBase):
        return f"fold the clients' rows through the layer '{name}', which is not of each row alone"
    if isinstance(module, _BatchNorm):
        if type(module) not in _NORMS or module.running_mean is None:
            return f"stack the BatchNorm layer '{name}', which is of another kind or keeps no statistics"
        if module.momentum is None:
            return f"stack the BatchNorm layer '{name}', whose statistics are averages over all batches (momentum=None)"
    if isinstance(module, nn.Embedding) and (module.scale_grad_by_freq or module.max_norm is not None or module.sparse):
        return f"stack the embedding '{name}', whose gradients are scaled or sparse, or whose rows are kept short"
    if isinstance(module, nn.RNNBase) and (type(module) not in _RECURRENT or module.proj_size):
        return f"stack the recurrent layer '{name}', which is of another kind or has a projection"
    return None


@contextmanager
def stackable_layers(module: nn.Module, there: Tensor | None = None, lone: int | None = None) -> Iterator[None]:
    """While open, a module's BatchNorm, recurrent and embedding layers can be mapped over clients.

    Args:
        module: the model or a part of it.
        there: [B] 1 for a row of the client and 0 for padding, inside the map; None where nothing is trained.
        lone: a client that has a batch of a single sample, if any.
    """
    if (special := _SPECIAL.get(module)) is None:
        special = _SPECIAL[module] = [m for m in module.modules() if isinstance(m, (*_NORMS, *_RECURRENT)) or _pads(m)]
    forwards: dict[nn.Module, Callable[..., Any]] = {}
    for layer in special:
        if isinstance(layer, nn.Embedding):
            forwards[layer] = partial(_embed, layer)
        elif isinstance(layer, nn.RNNBase):
            forwards[layer] = partial(_recur, layer)
        elif isinstance(layer, _NORMS) and layer.training and there is not None:
            forwards[layer] = partial(_normalise, there, lone, layer)
    for layer, forward in forwards.items():
        vars(layer)["forward"] = forward
    try:
        yield
    finally:
        for layer in forwards:
            del vars(layer)["forward"]


def _pads(module: nn.Module) -> bool:
    plain = type(module) is nn.Embedding and module.max_norm is None and not module.scale_grad_by_freq
    return plain and module.padding_idx is not None


def _embed(layer: nn.Embedding, input: Tensor) -> Tensor:
    """An embedding's forward; the row of the padding index has no gradient."""
    rows, padding = F.embedding(input, layer.weight), torch.eq(input, layer.padding_idx or 0)
    return torch.where(padding.unsqueeze(-1), rows.detach(), rows)


def _normalise(there: Tensor, lone: int | None, layer: _BatchNorm, input: Tensor) -> Tensor:
    """A layer's forward in training: input [B, channels, …] with the statistics of the rows that are there, which the
    running ones then move towards; these stay where no row is there.
    """
    x = input
    if lone is not None and x[0, 0].numel() == 1:
        raise LoneSampleError.of(lone)
    mean_now, variance_now = layer.running_mean, layer.running_var
    assert mean_now is not None
    assert variance_now is not None
    assert layer.momentum is not None
    wide = x.to(mean_now.dtype)  # in bf16, statistics are those of the run's own number type
    axes = [0, *range(2, x.ndim)]
    there = there.to(wide.dtype)
    weight = there.view(-1, *[1] * (x.ndim - 1))
    count = there.sum() * x[0, 0].numel()
    some = count.clamp(min=1)
    mean = (wide * weight).sum(axes) / some
    centred = wide - _along(mean, x)
    variance = (centred.square() * weight).sum(axes) / some
    with torch.no_grad():
        unbiased = variance * (some / (some - 1).clamp(min=1))
        for running, seen in ((mean_now, mean), (variance_now, unbiased)):
            moved = running * (1 - layer.momentum) + seen * layer.momentum
            running.copy_(torch.where(count > 0, moved, running))
    out = centred * _along(torch.rsqrt(variance + layer.eps), x)
    if layer.affine:
        out = out * _along(layer.weight, x) + _along(layer.bias, x)
    return out.to(x.dtype)


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Numbers of channels [channels] beside x [B, channels, …]."""
    return values.view(-1, *[1] * (x.ndim - 2)) if x.ndim > 2 else values


def _recur(layer: nn.RNNBase, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
    """The forward of an RNN, LSTM or GRU, step by step; arguments and outputs as of the layer's own.

    With z_t = W_ih x_t + b_ih and y_t = W_hh h_{t−1} + b_hh: an RNN has h_t = tanh(z_t + y_t); an LSTM, of whose
    four parts i, f, g, o: c_t = σ(f) c_{t−1} + σ(i) tanh(g), h_t = σ(o) tanh(c_t); a GRU, of whose three parts r, u, n:
    h_t = (1 − σ(u)) tanh(z_n + σ(r) y_n) + σ(u) h_{t−1}.
    """
    x, start = input, hx
    if isinstance(x, PackedSequence):
        raise ModelError("packed sequences cannot be stacked over clients; take the engine 'processes'")
    single = x.ndim == 2
    if single:
        x = x.unsqueeze(1)
    elif layer.batch_first:
        x = x.transpose(0, 1)
    parts = start if isinstance(start, tuple) else (start,) if start is not None else ()
    begun = [part.unsqueeze(1) if single else part for part in parts]
    ways = 2 if layer.bidirectional else 1
    last: list[tuple[Tensor, ...]] = []
    for depth in range(layer.num_layers):
        outputs = []
        for way in range(ways):
            place = depth * ways + way
            state = tuple(part[place] for part in begun) or _zeros(layer, x)
            run, state = _one_way(layer, x.flip(0) if way else x, state, f"l{depth}{'_reverse' if way else ''}")
            outputs.append(run.flip(0) if way else run)
            last.append(state)
        x = torch.cat(outputs, -1)
    ends = [torch.stack(each) for each in zip(*last, strict=True)]
    if single:
        x, ends = x.squeeze(1), [end.squeeze(1) for end in ends]
    elif layer.batch_first:
        x = x.transpose(0, 1)
    return x, tuple(ends) if isinstance(layer, nn.LSTM) else ends[0]


def _zeros(layer: nn.RNNBase, x: Tensor) -> tuple[Tensor, ...]:
    zero = x.new_zeros(x.shape[1], layer.hidden_size)
    return (zero, zero) if isinstance(layer, nn.LSTM) else (zero,)


def _one_way(layer: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...], name: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer in one direction over x [T, B, …]: hidden states [T, B, hidden] and the last state."""
    into, back, into_bias, back_bias = (getattr(layer, f"{kind}_{name}", None) for kind in _TENSORS)
    assert into is not None
    assert back is not None
    inputs = F.linear(x, into, into_bias)
    cell = _CELLS[layer.mode]
    hidden = []
    for z in inputs.unbind(0):
        state = cell(z, F.linear(state[0], back, back_bias), state)
        hidden.append(state[0])
    return torch.stack(hidden), state


def _lstm(z: Tensor, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (z + y).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(z: Tensor, y: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (zr, zu, zn), (yr, yu, yn) = z.chunk(3, -1), y.chunk(3, -1)
    u = torch.sigmoid(zu + yu)
    return ((1 - u) * torch.tanh(zn + torch.sigmoid(zr + yr) * yn) + u * state[0],)


_TENSORS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_CELLS: dict[str, Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda z, y, _: (torch.tanh(z + y),),
    "RNN_RELU": lambda z, y, _: (torch.relu(z + y),),
}
