"""The optimizers of local training as ``torch.optim`` has them, for one client and for clients side by side.

- ``sgd``: m ← βm + (g + λw), w ← w − ηm;
- ``adam``: with g ← g + λw, m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², w ← w − η (m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε)
  with β₁ = 0.9, β₂ = 0.999, ε = 1e-8 unless given otherwise (Kingma and Ba 2015);
- ``adamw``: the same with λ = 0 after w ← (1 − ηλ)w (Loshchilov and Hutter 2019).

What an optimizer remembers (m, v and t) starts from zero in every call of ``fit`` and never travels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from commonground.algorithms import Tensors
from commonground.errors import ModelError

__all__ = [
    "BETAS",
    "EPSILON",
    "OPTIMIZERS",
    "OptimizerName",
    "Rates",
    "SequentialOptimizer",
    "StackedOptimizer",
    "gradients_of",
    "keep_inactive",
]

OptimizerName = Literal["sgd", "adam", "adamw"]

Several = list[Tensor]
"""Tensors that are moved together."""

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of torch.optim


@dataclass(frozen=True)
class Rates:
    """Settings of the optimizer in one call of ``fit``.

    Attributes:
        lr: learning rate.
        momentum: of SGD.
        weight_decay: λ.
        optimizer: which.
        clip_norm: largest norm of a client's gradient of all trained tensors together, at each step; None for any.
        factors: by which the learning rate of single tensors is multiplied, by name.
        undecayed: names of tensors without weight decay.
        betas: β₁ and β₂ of Adam and AdamW.
        eps: ε of Adam and AdamW.
    """

    lr: float
    momentum: float
    weight_decay: float
    optimizer: OptimizerName = "sgd"
    clip_norm: float | None = None
    factors: Mapping[str, float] = field(default_factory=dict)
    undecayed: frozenset[str] = frozenset()
    betas: tuple[float, float] = BETAS
    eps: float = EPSILON

    def factor(self, name: str) -> float:
        """By which a tensor's learning rate is multiplied."""
        return self.factors.get(name, 1.0)

    def decay(self, name: str) -> float:
        """A tensor's weight decay."""
        return 0.0 if name in self.undecayed else self.weight_decay


class Rule(ABC):
    """An optimizer's arithmetic.

    Attributes:
        remembers: tensors that it keeps beside every trained one.
    """

    remembers: ClassVar[int]

    @staticmethod
    @abstractmethod
    def of_torch(parameters: list[dict[str, Any]], rates: Rates) -> torch.optim.Optimizer:
        """PyTorch's own optimizer with these settings."""

    @staticmethod
    @abstractmethod
    def move(
        values: Several, gradients: Several, memory: Sequence[Several], rates: Rates, lr: float, step: int
    ) -> None:
        """One step of some tensors, in place; on a GPU all of them are moved by a few kernels.

        Args:
            values: the tensors.
            gradients: of the loss; not changed.
            memory: ``remembers`` lists of tensors like these, zero at first; changed in place.
            rates: settings.
            lr: learning rate of this step.
            step: its number, from 1.
        """


class SGD(Rule):
    """Stochastic gradient descent with momentum."""

    remembers = 1

    @staticmethod
    def of_torch(parameters: list[dict[str, Any]], rates: Rates) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, rates.lr, rates.momentum, fused=True)

    @staticmethod
    def move(
        values: Several, gradients: Several, memory: Sequence[Several], rates: Rates, lr: float, step: int
    ) -> None:
        torch._foreach_mul_(memory[0], rates.momentum)
        torch._foreach_add_(memory[0], _decayed(values, gradients, rates))
        torch._foreach_sub_(values, memory[0], alpha=lr)


class Adam(Rule):
    """Adam, weight decay as a part of the gradient."""

    remembers = 2

    @staticmethod
    def of_torch(parameters: list[dict[str, Any]], rates: Rates) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, rates.lr, rates.betas, rates.eps, fused=True)

    @staticmethod
    def move(
        values: Several, gradients: Several, memory: Sequence[Several], rates: Rates, lr: float, step: int
    ) -> None:
        _adam(values, _decayed(values, gradients, rates), memory, rates, lr, step)


class AdamW(Rule):
    """Adam, weight decay apart from the gradient."""

    remembers = 2

    @staticmethod
    def of_torch(parameters: list[dict[str, Any]], rates: Rates) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, rates.lr, rates.betas, rates.eps, fused=True)

    @staticmethod
    def move(
        values: Several, gradients: Several, memory: Sequence[Several], rates: Rates, lr: float, step: int
    ) -> None:
        torch._foreach_mul_(values, 1 - lr * rates.weight_decay)
        _adam(values, gradients, memory, rates, lr, step)


def _decayed(values: Several, gradients: Several, rates: Rates) -> Several:
    """Gradients with those of the weight decay."""
    decay = rates.weight_decay
    return list(torch._foreach_add(gradients, values, alpha=decay)) if decay else gradients


def _adam(values: Several, gradients: Several, memory: Sequence[Several], rates: Rates, lr: float, step: int) -> None:
    (first, second), (beta1, beta2) = memory, rates.betas
    torch._foreach_lerp_(first, gradients, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
    scale = list(torch._foreach_sqrt(second))
    torch._foreach_div_(scale, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(scale, rates.eps)
    torch._foreach_addcdiv_(values, first, scale, value=-lr / (1 - beta1**step))


OPTIMIZERS: dict[OptimizerName, type[Rule]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
"""Every optimizer by name."""


def keep_inactive(active: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    """New values [C, …] for the clients that have a batch, old ones for the others; ``active`` None means all."""
    return new if active is None else torch.where(active.view(-1, *[1] * (new.ndim - 1)), new, old)


def gradients_of(loss: Tensor, tensors: Mapping[str, Tensor]) -> Tensors:
    """Gradients by name; zero for a tensor on which the loss does not depend.

    Raises:
        ModelError: the loss depends on no tensor at all.
    """
    _check_depends(loss, tensors)
    found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(tensors, found, strict=True))


def _check_depends(loss: Tensor, names: Iterable[str]) -> None:
    if not loss.requires_grad:
        raise ModelError(f"the model's outputs do not depend on {', '.join(names)}, so that these cannot be trained")


class SequentialOptimizer:
    """Steps on a module's own parameters, by PyTorch's optimizer.

    Args:
        parameters: by name.
        rates: its settings.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], rates: Rates) -> None:
        self._parameters = parameters
        self._clip_norm = rates.clip_norm
        kinds: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in parameters.items():
            kinds.setdefault((rates.factor(name), rates.decay(name)), []).append(parameter)
        groups = [{"params": own, "factor": factor, "weight_decay": wd} for (factor, wd), own in kinds.items()]
        self._optimizer = OPTIMIZERS[rates.optimizer].of_torch(groups, rates)

    def leaves(self) -> Tensors:
        """The parameters themselves."""
        return dict(self._parameters)

    def step(self, loss: Tensor, lr: float, active: Tensor | None, correction: Tensors | None) -> None:
        """One step down the gradient of a loss, to which a correction is added by name."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        self._optimizer.zero_grad()
        _check_depends(loss, self._parameters)
        loss.backward()
        for name, change in (correction or {}).items():
            parameter = self._parameters.get(name)
            if parameter is not None and parameter.grad is not None:
                parameter.grad.add_(change)
        self._move()

    def along(self, gradients: Tensors, lr: float, active: Tensor | None) -> None:
        """One step along these gradients, by name."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        for name, parameter in self._parameters.items():
            # In the order of the parameter's memory, which is another one for images (channels last): a fused optimizer
            # goes through both as they lie, and would move numbers along those of others.
            parameter.grad = torch.empty_like(parameter).copy_(gradients[name])
        self._move()

    def _move(self) -> None:
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters.values(), self._clip_norm)
        self._optimizer.step()


class StackedOptimizer:
    """Steps of clients side by side on stacked tensors, in place. A client without a batch keeps its weights and what
    its optimizer remembers; it has no batch later in the same call either, so the steps are counted for all at once.

    Args:
        values: tensors by name, each with a leading axis, changed in place.
        names: which of them are trained.
        rates: the optimizer's settings.
    """

    def __init__(self, values: Tensors, names: Sequence[str], rates: Rates) -> None:
        self._values, self._names, self._rates = values, names, rates
        self._rule = OPTIMIZERS[rates.optimizer]
        # A head phase is thousands of tiny steps, so all that does not change is looked up once.
        self._memory = [{name: torch.zeros_like(values[name]) for name in names} for _ in range(self._rule.remembers)]
        self._parts = [
            (own, factor, [names.index(name) for name in alike], self._tensors(alike))
            for own, factor, alike in _alike(names, rates)
        ]
        self._steps = 0
        self._leaves: Tensors = {}

    def leaves(self) -> Tensors:
        """What the next loss is to be computed from."""
        self._leaves = {name: self._values[name].detach().requires_grad_() for name in self._names}
        return self._leaves

    def step(self, loss: Tensor, lr: float, active: Tensor | None, correction: Tensors | None) -> None:
        """One step of every client down the gradient of its own loss [C]."""
        _check_depends(loss, self._names)
        found = torch.autograd.grad(loss.sum(), list(self._leaves.values()), allow_unused=True)
        gradients, given = dict(zip(self._names, found, strict=True)), correction or {}
        self.apply([g + given[n] if n in given and g is not None else g for n, g in gradients.items()], lr, active)

    def along(self, gradients: Tensors, lr: float, active: Tensor | None) -> None:
        """One step of every client along these gradients, by name."""
        self.apply([gradients[name] for name in self._names], lr, active)

    def apply(self, gradients: Sequence[Tensor | None], lr: float, active: Tensor | None) -> None:
        """One step along these gradients, in the order of the names; None leaves a tensor as it is, as PyTorch does."""
        self._steps += 1
        if self._rates.clip_norm is not None:
            gradients = _clipped(gradients, self._rates.clip_norm)
        for own, factor, places, tensors in self._parts:
            found = [g for place in places if (g := gradients[place]) is not None]
            if len(found) < len(places):
                tensors = self._tensors([self._names[place] for place in places if gradients[place] is not None])
            if active is None:
                self._rule.move(tensors[0], found, tensors[1:], own, lr * factor, self._steps)
                continue
            for olds, news in zip(tensors, self._moved(own, tensors, found, lr * factor), strict=True):
                for old, new in zip(olds, news, strict=True):
                    old.copy_(keep_inactive(active, old, new))

    def _tensors(self, names: Sequence[str]) -> list[list[Tensor]]:
        """The values of these names, and each that is remembered of them."""
        return [[of[name] for name in names] for of in (self._values, *self._memory)]

    def _moved(
        self, own: Rates, tensors: Sequence[list[Tensor]], gradients: list[Tensor], lr: float
    ) -> list[list[Tensor]]:
        """Where a step takes tensors and what is remembered of them, as copies."""
        moved = [[tensor.clone() for tensor in each] for each in tensors]
        self._rule.move(moved[0], gradients, moved[1:], own, lr, self._steps)
        return moved


def _alike(names: Sequence[str], rates: Rates) -> list[tuple[Rates, float, list[str]]]:
    """Names of tensors with the same weight decay and share of the learning rate, with both."""
    alike: dict[tuple[float, float], list[str]] = {}
    for name in names:
        alike.setdefault((rates.decay(name), rates.factor(name)), []).append(name)
    return [(replace(rates, weight_decay=decay), factor, own) for (decay, factor), own in alike.items()]


def _clipped(gradients: Sequence[Tensor | None], largest: float) -> list[Tensor | None]:
    """Gradients [C, …], each client's scaled down to a norm over all of them, as ``clip_grad_norm_`` does it."""
    norms = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients if g is not None])
    factors = (largest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    return [None if g is None else g * factors.view(-1, *[1] * (g.ndim - 1)) for g in gradients]
