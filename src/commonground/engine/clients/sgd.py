"""Mini-batch SGD with momentum, as ``torch.optim.SGD`` has it, for one client and for clients side by side.

m ← βm + (g + λw), w ← w − ηm, from m = 0 in every call of ``fit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from commonground.algorithms import Tensors
from commonground.engine.clients.batches import Rates

__all__ = ["SequentialSGD", "StackedSGD", "keep_inactive", "step_heads"]


def keep_inactive(active: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    """New values [C, …] for the clients that have a batch, old ones for the others; ``active`` None means all."""
    return new if active is None else torch.where(active.view(-1, *[1] * (new.ndim - 1)), new, old)


class SequentialSGD:
    """Steps on a module's own parameters.

    Args:
        parameters: by name.
        rates: of SGD.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], rates: Rates) -> None:
        self._parameters = parameters
        self._optimizer = torch.optim.SGD(
            parameters.values(), rates.lr, rates.momentum, weight_decay=rates.weight_decay, fused=True
        )

    def leaves(self) -> Tensors:
        """The parameters themselves."""
        return dict(self._parameters)

    def step(self, loss: Tensor, lr: float, active: Tensor | None, correction: Tensors | None) -> None:
        """One step down the gradient of a loss, to which a correction is added by name."""
        self._optimizer.param_groups[0]["lr"] = lr
        self._optimizer.zero_grad()
        loss.backward()
        for name, parameter in self._parameters.items() if correction is not None else ():
            if name in correction and parameter.grad is not None:  # type: ignore[operator]
                parameter.grad.add_(correction[name])  # type: ignore[index]
        self._optimizer.step()


class StackedSGD:
    """Steps of clients side by side on stacked tensors; a client without a batch keeps its weights and momentum.

    Args:
        values: tensors by name, each with a leading axis; entries are replaced.
        names: which of them are trained.
        rates: of SGD.
    """

    def __init__(self, values: Tensors, names: Sequence[str], rates: Rates) -> None:
        self._values, self._names, self._rates = values, names, rates
        self._momentum = {name: torch.zeros_like(values[name]) for name in names}
        self._leaves: Tensors = {}

    def leaves(self) -> Tensors:
        """What the next loss is to be computed from."""
        self._leaves = {name: self._values[name].detach().requires_grad_() for name in self._names}
        return self._leaves

    def step(self, loss: Tensor, lr: float, active: Tensor | None, correction: Tensors | None) -> None:
        """One step of every client down the gradient of its own loss [C]."""
        gradients = torch.autograd.grad(loss.sum(), list(self._leaves.values()))
        for name, gradient in zip(self._names, gradients, strict=True):
            value, buffer = self._values[name], self._momentum[name]
            if correction is not None and name in correction:
                gradient = gradient + correction[name]
            if self._rates.weight_decay:
                gradient = gradient.add(value, alpha=self._rates.weight_decay)
            moved = buffer.mul(self._rates.momentum).add_(gradient)
            self._momentum[name] = keep_inactive(active, buffer, moved)
            self._values[name] = keep_inactive(active, value, value.sub(moved, alpha=lr))


def step_heads(value: Tensor, gradient: Tensor, buffer: Tensor, rates: Rates, active: Tensor | None) -> None:
    """One step of stacked heads in place, without memory of their own: there are thousands of these, each tiny."""
    if rates.weight_decay:
        gradient.add_(value, alpha=rates.weight_decay)
    if active is None:
        buffer.mul_(rates.momentum).add_(gradient)
        value.sub_(buffer, alpha=rates.lr)
        return
    buffer.copy_(keep_inactive(active, buffer, buffer * rates.momentum + gradient))
    value.copy_(keep_inactive(active, value, value - rates.lr * buffer))
