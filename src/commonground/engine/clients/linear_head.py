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
from commonground.models import Split

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
    weight, bias = (*heads.values(), None)[:2]
    assert weight is not None
    clients, n, width = features.shape
    classes = weight.shape[1]
    starts = (torch.arange(clients, device=features.device) * n).view(-1, 1, 1)
    flat = (schedule.places + starts).transpose(0, 1).reshape(schedule.steps, -1)
    there = schedule.weights.transpose(0, 1).contiguous()  # [steps, C, B]
    counts = there.sum(-1)  # [steps, C]
    share = (there / counts.clamp(min=1).unsqueeze(-1)).unsqueeze(-1)  # [steps, C, B, 1]
    recorded = (schedule.recorded().transpose(0, 1) > 0).contiguous()  # [steps, C]
    record_from = int(schedule.last_epoch.min()) if clients else schedule.steps
    onehot = torch.nn.functional.one_hot(labels.reshape(-1), classes).to(weight.dtype)
    features = features.reshape(clients * n, width)
    optimizer = HeadOptimizer(heads, list(heads), rates)
    total = weight.new_zeros(clients)

    def descend(f: Tensor, y: Tensor, share: Tensor, seen: tuple[Tensor, Tensor] | None, active: Tensor | None) -> None:
        """One step, whose losses are counted if it is told of which samples and clients."""
        logits = torch.bmm(f, weight.transpose(1, 2))
        if bias is not None:
            logits += bias.unsqueeze(1)
        if seen is not None:
            loss = torch.logsumexp(logits, -1) - (logits * y).sum(-1)
            total.add_((loss * seen[0]).sum(-1) * seen[1])
        residual = torch.softmax(logits, -1).sub_(y).mul_(share)
        gradients = [torch.bmm(residual.transpose(1, 2), f), *([] if bias is None else [residual.sum(1)])]
        optimizer.apply(gradients, rates.lr, active)

    def all_by_graph(graphs: StepGraphs) -> None:
        """All steps, each of which finds out on the device which one it is: the host starts it and no more."""
        at = torch.zeros(1, dtype=torch.int64, device=features.device)

        def next_step(recording: bool, ragged: bool) -> None:
            rows = flat.index_select(0, at).squeeze(0)
            f = features.index_select(0, rows).view(clients, schedule.width, width)
            y = onehot.index_select(0, rows).view(clients, schedule.width, classes)
            own, there_now, recorded_now = (of.index_select(0, at).squeeze(0) for of in (share, there, recorded))
            active = schedule.active_at(at) if ragged else None
            descend(f, y, own, (there_now, recorded_now) if recording else None, active)
            at.add_(1)

        step = RecordedStep(next_step, graphs)
        for s in range(schedule.steps):
            step(s >= record_from, schedule.active(s) is not None)

    def one_after_the_other() -> None:
        shares = share.unbind()
        block = max(1, n // schedule.width)  # as many steps as go over the features once
        for s in range(schedule.steps):
            if s % block == 0:
                rows = flat[s : s + block].reshape(-1)
                blocks_f = features.index_select(0, rows).view(-1, clients, schedule.width, width).unbind()
                blocks_y = onehot.index_select(0, rows).view(-1, clients, schedule.width, classes).unbind()
            seen = (there[s], recorded[s]) if s >= record_from else None
            descend(blocks_f[s % block], blocks_y[s % block], shares[s], seen, schedule.active(s))

    if graphs is None:
        one_after_the_other()
    else:
        all_by_graph(graphs)
    return total / (counts * recorded)[record_from:].sum(0).clamp(min=1)


def is_linear_head(split: Split, names: Sequence[str]) -> bool:
    """Whether what is trained is exactly one linear layer at the end of the model, on vectors."""
    rest = split.rest
    if isinstance(rest, nn.Sequential) and len(rest) == 1:
        rest = rest[0]
    # A class derived from it (a cosine or scaled head) has another gradient.
    return type(rest) is nn.Linear and len(names) == len(list(rest.parameters())) and rest.weight.requires_grad
