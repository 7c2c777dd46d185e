"""SGD on linear heads with the gradient written out.

A head phase is thousands of tiny steps of softmax regression on fixed features; automatic differentiation costs
several times the arithmetic there. With p = softmax(Wf + b), the cross-entropy's gradient is (p − y)fᵀ for W and
p − y for b, averaged over the batch. The same lines serve one client (a leading axis of 1) and a stacked cohort.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from commonground.engine.clients.batches import Rates
from commonground.models import Split

__all__ = ["fit_linear_heads", "is_linear_head"]


def fit_linear_heads(
    weight: Tensor,
    bias: Tensor | None,
    features: Tensor,
    labels: Tensor,
    order: Tensor,
    rates: Rates,
    last_epoch: Tensor,
) -> Tensor:
    """Train C linear heads in place, each on its own features.

    Args:
        weight: [C, classes, F], changed in place.
        bias: [C, classes] or None, changed in place.
        features: [C, n, F], padded to the largest client.
        labels: [C, n].
        order: [C, steps, B] positions of each batch's samples; −1 for padding. A client without a batch at a step
            keeps its weights and momentum.
        rates: of SGD, as in ``torch.optim.SGD``.
        last_epoch: [C] first step of the last pass, from which the loss is recorded.

    Returns:
        [C] mean loss over the samples of the last pass, before each step.
    """
    clients, n, width = features.shape
    classes = weight.shape[1]
    steps, size = order.shape[1:]
    flat = (order.clamp(min=0) + torch.arange(clients).view(-1, 1, 1) * n).transpose(0, 1).reshape(steps, -1)
    there = (order >= 0).to(weight.dtype).transpose(0, 1)  # [steps, C, B]
    counts = there.sum(-1)  # [steps, C]
    share = (there / counts.clamp(min=1).unsqueeze(-1)).unsqueeze(-1)  # [steps, C, B, 1]
    ragged = (counts == 0).any(1).tolist()
    recorded = torch.arange(steps).view(-1, 1) >= last_epoch  # [steps, C]
    record_from = int(last_epoch.min()) if clients else steps
    onehot = torch.nn.functional.one_hot(labels.reshape(-1), classes).to(weight.dtype)
    features = features.reshape(clients * n, width)
    momentum_w = torch.zeros_like(weight)
    momentum_b = torch.zeros_like(bias) if bias is not None else None
    total = weight.new_zeros(clients)
    samples = weight.new_zeros(clients)
    for s in range(steps):
        f = features.index_select(0, flat[s]).view(clients, size, width)
        y = onehot.index_select(0, flat[s]).view(clients, size, classes)
        logits = torch.bmm(f, weight.transpose(1, 2))
        if bias is not None:
            logits += bias.unsqueeze(1)
        if s >= record_from:
            loss = torch.logsumexp(logits, -1) - (logits * y).sum(-1)
            total += (loss * there[s]).sum(-1) * recorded[s]
            samples += counts[s] * recorded[s]
        residual = torch.softmax(logits, -1).sub_(y).mul_(share[s])
        gradient = torch.bmm(residual.transpose(1, 2), f)
        if rates.weight_decay:
            gradient.add_(weight, alpha=rates.weight_decay)
        active = (counts[s] > 0) if ragged[s] else None
        _step(weight, gradient, momentum_w, rates, active)
        if bias is not None and momentum_b is not None:
            gradient = residual.sum(1)
            if rates.weight_decay:
                gradient.add_(bias, alpha=rates.weight_decay)
            _step(bias, gradient, momentum_b, rates, active)
    return total / samples.clamp(min=1)


def _step(value: Tensor, gradient: Tensor, buffer: Tensor, rates: Rates, active: Tensor | None) -> None:
    """One step of SGD with momentum in place; clients that are not active keep value and buffer."""
    if active is None:
        buffer.mul_(rates.momentum).add_(gradient)
        value.sub_(buffer, alpha=rates.lr)
    else:
        mask = active.view(-1, *[1] * (value.ndim - 1))
        buffer.copy_(torch.where(mask, buffer * rates.momentum + gradient, buffer))
        value.copy_(torch.where(mask, value - rates.lr * buffer, value))


def is_linear_head(split: Split, names: Sequence[str]) -> bool:
    """Whether what is trained is exactly one linear layer at the end of the model, on vectors."""
    rest = split.rest
    if isinstance(rest, nn.Sequential) and len(rest) == 1:
        rest = rest[0]
    # A class derived from it (a cosine or scaled head) has another gradient.
    return type(rest) is nn.Linear and len(names) == len(list(rest.parameters())) and rest.weight.requires_grad
