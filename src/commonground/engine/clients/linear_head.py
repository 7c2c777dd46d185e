"""Training of linear heads with the gradient written out.

A head phase is thousands of tiny steps of softmax regression on fixed features; automatic differentiation costs
several times the arithmetic there. With p = softmax(Wf + b), the cross-entropy's gradient is (p − y)fᵀ for W and
p − y for b, averaged over the batch. The same lines serve one client (a leading axis of 1) and a stacked cohort.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from commonground.algorithms import Tensors
from commonground.engine.clients.batches import CohortSchedule
from commonground.engine.clients.optimizers import Rates, StackedOptimizer
from commonground.engine.clients.step_graphs import RecordedStep, StepGraphs
from commonground.models import ModelCut

__all__ = ["fit_linear_heads", "is_linear_head"]


class HeadOptimizer(StackedOptimizer):
    """Steps of stacked heads. Where clients are left out, SGD rounds ηm before it is subtracted: numbers of earlier
    runs hang on that last bit.
    """

    def _moved(
        self, own: Rates, tensors: Sequence[list[Tensor]], gradients: list[Tensor], lr: float
    ) -> list[list[Tensor]]:
        moved = super()._moved(own, tensors, gradients, lr)
        if self._rates.optimizer == "sgd":
            moved[0] = [old - lr * step for old, step in zip(tensors[0], moved[1], strict=True)]
        return moved


def fit_linear_heads(
    heads: Tensors,
    features: Tensor,
    labels: Tensor,
    schedule: CohortSchedule,
    rates: Rates,
    graphs: StepGraphs | None = None,
) -> Tensor:
    """Train C linear heads in place, each on its own features.

    Args:
        heads: by name the weight [C, classes, F] and, if there is one, then the bias [C, classes], changed in place.
        features: [C, n, F], padded to the largest client.
        labels: [C, n].
        schedule: the clients' batches. A client without a batch at a step keeps its weights and momentum.
        rates: the optimizer's settings.
        graphs: where a step is recorded to be replayed, on a GPU.

    Returns:
        [C] mean loss over the samples of the last pass, before each step.
    """
    phase = _HeadPhase(heads, features, labels, schedule, rates)
    if graphs is None:
        phase.one_by_one()
    else:
        phase.replayed(graphs)
    return phase.mean_loss()


class _HeadPhase:
    """The steps of a phase; arguments as of :func:`fit_linear_heads`."""

    def __init__(
        self, heads: Tensors, features: Tensor, labels: Tensor, schedule: CohortSchedule, rates: Rates
    ) -> None:
        weight, self._bias = (*heads.values(), None)[:2]
        assert weight is not None
        self._weight, self._schedule, self._lr = weight, schedule, rates.lr
        clients, self._n, width = features.shape
        classes = weight.shape[1]
        starts = (torch.arange(clients, device=features.device) * self._n).view(-1, 1, 1)
        self._rows = (schedule.places + starts).transpose(0, 1).reshape(schedule.steps, -1)  # [steps, C · B]
        self._there = schedule.weights.transpose(0, 1).contiguous()  # [steps, C, B]
        self._counts = self._there.sum(-1)  # [steps, C]
        self._share = (self._there / self._counts.clamp(min=1).unsqueeze(-1)).unsqueeze(-1)  # [steps, C, B, 1]
        self._recorded = (schedule.recorded().transpose(0, 1) > 0).contiguous()  # [steps, C]
        self._record_from = int(schedule.last_epoch.min()) if clients else schedule.steps
        self._onehot = torch.nn.functional.one_hot(labels.reshape(-1), classes).to(weight.dtype)
        self._features = features.reshape(clients * self._n, width)
        self._shapes = [(-1, clients, schedule.width, last) for last in (width, classes)]
        self._optimizer = HeadOptimizer(heads, list(heads), rates)
        self._total = weight.new_zeros(clients)

    def one_by_one(self) -> None:
        """Start each kernel of each step from here."""
        share, schedule = self._share.unbind(), self._schedule
        block = max(1, self._n // schedule.width)  # as many steps as go over the features once
        for s in range(schedule.steps):
            if s % block == 0:
                f, y = (part.unbind() for part in self._samples(self._rows[s : s + block].reshape(-1)))
            seen = (self._there[s], self._recorded[s]) if s >= self._record_from else None
            self._descend(f[s % block], y[s % block], share[s], seen, schedule.active(s))

    def replayed(self, graphs: StepGraphs) -> None:
        """Record a step that finds out on the device which one it is: all that the host does is to start it again."""
        at = torch.zeros(1, dtype=torch.int64, device=self._features.device)

        def next_step(counted: bool, ragged: bool) -> None:
            f, y = (part.squeeze(0) for part in self._samples(self._rows.index_select(0, at).squeeze(0)))
            share, there, recorded = (
                of.index_select(0, at).squeeze(0) for of in (self._share, self._there, self._recorded)
            )
            active = self._schedule.active_at(at) if ragged else None
            self._descend(f, y, share, (there, recorded) if counted else None, active)
            at.add_(1)

        step = RecordedStep(next_step, graphs)
        for s in range(self._schedule.steps):
            step(s >= self._record_from, self._schedule.active(s) is not None)

    def _samples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Features [steps, C, B, F] and targets [steps, C, B, classes] of these rows."""
        features, targets = (
            of.index_select(0, rows).view(shape)
            for of, shape in zip((self._features, self._onehot), self._shapes, strict=True)
        )
        return features, targets

    def _descend(
        self, f: Tensor, y: Tensor, share: Tensor, seen: tuple[Tensor, Tensor] | None, active: Tensor | None
    ) -> None:
        """One step, whose losses are counted if it is told of which samples and clients."""
        logits = torch.bmm(f, self._weight.transpose(1, 2))
        if self._bias is not None:
            logits += self._bias.unsqueeze(1)
        if seen is not None:
            loss = torch.logsumexp(logits, -1) - (logits * y).sum(-1)
            self._total += (loss * seen[0]).sum(-1) * seen[1]
        residual = torch.softmax(logits, -1).sub_(y).mul_(share)
        gradients = [torch.bmm(residual.transpose(1, 2), f), *([] if self._bias is None else [residual.sum(1)])]
        self._optimizer.apply(gradients, self._lr, active)

    def mean_loss(self) -> Tensor:
        """[C] over the samples of the last pass."""
        return self._total / (self._counts * self._recorded)[self._record_from :].sum(0).clamp(min=1)


def is_linear_head(split: ModelCut, names: Sequence[str]) -> bool:
    """Whether what is trained is exactly one linear layer at the end of the model, on vectors."""
    rest = split.rest
    if isinstance(rest, nn.Sequential) and len(rest) == 1:
        rest = rest[0]
    # A class derived from it (a cosine or scaled head) has another gradient.
    return type(rest) is nn.Linear and len(names) == len(list(rest.parameters())) and rest.weight.requires_grad
