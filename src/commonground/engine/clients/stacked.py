"""Local training of many clients at once: tensors stacked on a leading axis, through ``torch.func``.

Every verb does for each client exactly what :class:`SequentialClient` does for one, with the same batches and the same
masks. Clients of unequal size are padded; a client that has fewer batches keeps its weights and its momentum from the
step on at which it would have stopped alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from commonground.algorithms import Batch, Client, Output, Tensors
from commonground.algorithms.base import Loss, Penalty
from commonground.engine.clients.batches import (
    BatchSchedule,
    Rates,
    TrainLength,
    batch_schedule,
    rates_of_steps,
    train_length,
)
from commonground.engine.clients.linear_head import fit_linear_heads, is_linear_head
from commonground.engine.clients.stacking import call_folded, call_stacked, names_inside
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.keys import torch_stream
from commonground.models import Split

__all__ = ["StackedClients"]


@dataclass(frozen=True)
class _Pool:
    """What a call of ``fit`` draws its batches from: the module it trains and that module's inputs.

    Attributes:
        module: the model, or the rest of a split.
        names: names in the whole model to names inside ``module``.
        rows: [N, …] inputs of all clients.
        labels: [N].
        starts: [C, 1] position of each client's first row.
    """

    module: nn.Module
    names: Mapping[str, str]
    rows: Tensor
    labels: Tensor
    starts: Tensor


@dataclass(frozen=True)
class _Extras:
    """What a method adds to plain training."""

    loss: Loss | None = None
    penalty: Penalty | None = None
    correction: Tensors | None = None
    reference: Tensor | None = None  # [C, n_max, …]


class StackedClients(Client):
    """The verbs for a stacked cohort.

    A tensor is kept once as long as it is common to all clients (what the server sent) and gets its leading axis when
    it is first trained or set.

    Args:
        setup: data, model and algorithm.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.model = setup.model
        self.dropouts = setup.dropouts  # found by trying the model in evaluation mode, so before any training
        self.local_epochs, self.local_steps = setup.config.local_epochs, setup.config.local_steps
        self.momentum, self.weight_decay = setup.config.momentum, setup.config.weight_decay
        self.seed, self.rounds = setup.config.seed, setup.config.rounds

    def begin(
        self,
        round: int,
        clients: Sequence[int],
        shared: Tensors,
        personal: Tensors,
        extra: Sequence[Tensors] = (),
    ) -> None:
        """Take up a round of several clients.

        Args:
            round: 1-based round.
            clients: their numbers.
            shared: tensors received from the server, without a leading axis.
            personal: the clients' own tensors, stacked in the order of ``clients``.
            extra: what the server sent to each client alone.
        """
        self.round, self.clients = round, list(clients)
        own = {name: torch.stack([e[name] for e in extra]) for name in (extra[0] if extra else {})}
        self.received, self._received_stacked = {**shared, **own}, set(own)
        self.lr = self.setup.lr_at(round)
        self._phase = 0
        self._indices = [self.setup.data.train_indices(c) for c in clients]
        self.sizes = np.array([len(i) for i in self._indices])
        self.setup.keep_hidden("train", clients)
        names = self.setup.initial
        self.state = {name: personal[name].clone() for name in self.setup.state_names}
        mine = {name: value.clone() for name, value in personal.items() if name in names}
        mine |= {name: value.clone() for name, value in own.items() if name in names}
        self.values: Tensors = {name: value for name, value in shared.items() if name in names} | mine
        self._stacked = set(mine)
        classes = self.setup.data.classes
        labels = [torch.from_numpy(self.setup.data.y_train[i]) for i in self._indices]
        counts = torch.stack([torch.bincount(y, minlength=classes) for y in labels])
        self.class_counts = counts.to(self.setup.samples.dtype)
        self._loaded: tuple[Tensor, Tensor] | None = None
        self._active: Tensor | None = None
        self.loss: Tensor | None = None

    # -- data ---------------------------------------------------------------------------------------------------

    def _rows(self) -> tuple[Tensor, Tensor]:
        """Training data of all clients one after the other: rows in storage order [Σn, …] and labels [Σn]."""
        if self._loaded is None:
            self._loaded = self.setup.samples.rows("train", np.concatenate(self._indices))
        return self._loaded

    def _starts(self) -> Tensor:
        """[C] position of each client's first sample in :meth:`_rows`."""
        return torch.from_numpy(np.concatenate([[0], np.cumsum(self.sizes)[:-1]]))

    def _schedules(
        self, wanted: TrainLength, start: Tensor | int | None = None
    ) -> tuple[Tensor, Tensor, list[BatchSchedule]]:
        """Batches of all clients: positions [C, steps, B] with −1 for padding, first step of the last pass [C]."""
        self._phase += 1
        starts = (
            [None] * len(self.clients) if start is None else torch.as_tensor(start).expand(len(self.clients)).tolist()
        )
        schedules = [
            batch_schedule(
                self.setup.config.seed,
                self.round,
                client,
                self._phase,
                size=int(size),
                start=first,
                **wanted,
            )
            for client, size, first in zip(self.clients, self.sizes, starts, strict=True)
        ]
        self.steps = torch.tensor([p.steps for p in schedules], dtype=self.setup.samples.dtype)
        longest = max(p.steps for p in schedules)
        widest = max(p.order.shape[1] for p in schedules)
        order = np.full((len(schedules), longest, widest), -1, dtype=np.int64)
        for row, schedule in zip(order, schedules, strict=True):
            row[: schedule.steps, : schedule.order.shape[1]] = schedule.order
        return torch.from_numpy(order), torch.tensor([p.last_epoch for p in schedules]), schedules

    def _masks(self, phase: int, step: int, schedules: Sequence[BatchSchedule] | None, rows: int) -> Tensors:
        """Dropout masks [C, rows, …] by buffer name; a client's mask is the one it would draw alone."""
        masks: Tensors = {}
        for name, (layer, shape) in self.dropouts.items():
            drawn = torch.ones((len(self.clients), rows, *shape), dtype=self.setup.samples.dtype)
            for c, client in enumerate(self.clients):
                full = schedules[c].order.shape[1] if schedules is not None else int(self.sizes[c])
                stream = torch_stream(self.setup.config.seed, "dropout", self.round, client, phase, step, name)
                drawn[c, :full] = layer.draw(full, shape, stream, drawn.dtype)
            masks[f"{name}.mask"] = drawn
        return masks

    def _augmented(self, x: Tensor, phase: int, step: int, schedules: Sequence[BatchSchedule]) -> Tensor:
        """Batches [C, B, …], each client's changed as it would be alone."""
        if self.setup.config.augment == "none":
            return x
        parts = []
        for rows, client, schedule in zip(x, self.clients, schedules, strict=True):
            full = schedule.order.shape[1]
            changed = self.setup.augmented(rows[:full], (self.round, client, phase, step), full)
            parts.append(torch.cat([changed, rows[full:]]))
        return torch.stack(parts)

    # -- tensors ------------------------------------------------------------------------------------------------

    def stack(self, names: Sequence[str]) -> None:
        """Give these tensors their leading axis, if they have none yet."""
        for name in names:
            if name not in self._stacked:
                value = self.values[name]
                self.values[name] = value.expand(len(self.clients), *value.shape).clone()
                self._stacked.add(name)

    def _keep_inactive(self, old: Tensor, new: Tensor) -> Tensor:
        """New values for the clients that have a batch, old ones for the others."""
        if self._active is None:
            return new
        return torch.where(self._active.view(-1, *[1] * (new.ndim - 1)), new, old)

    def get(self, group: str | Sequence[str]) -> Tensors:
        """See :meth:`commonground.algorithms.Client.get`; stacked."""
        names = self.setup.groups.names(group)
        self.stack(names)
        return {name: self.values[name].detach().clone() for name in names}

    def set(self, tensors: Tensors) -> None:
        """See :meth:`commonground.algorithms.Client.set`."""
        self.stack(list(tensors))
        for name, value in tensors.items():
            self.values[name] = self._keep_inactive(self.values[name], value.expand_as(self.values[name])).clone()

    def send(self, group: str | Sequence[str] | Tensors) -> Tensors:
        """See :meth:`commonground.algorithms.Client.send`; what is common to all gets its leading axis."""
        if not isinstance(group, dict):
            return self.get(group)
        sent: Tensors = {}
        for name, value in group.items():
            model = self.setup.initial.get(name)
            common = model is not None and value.ndim == model.ndim
            sent[name] = value.expand(len(self.clients), *value.shape).clone() if common else value
        return sent

    def keep(self, state: Tensors) -> None:
        """See :meth:`commonground.algorithms.Client.keep`."""
        for name, value in state.items():
            old = self.state[name]
            self.state[name] = self._keep_inactive(old, value.detach().expand_as(old)).clone()

    def scale(self, tensors: Tensors, factor: Tensor | float) -> Tensors:
        """See :meth:`commonground.algorithms.Client.scale`."""
        if not isinstance(factor, Tensor) or factor.ndim == 0:
            return {name: value * factor for name, value in tensors.items()}
        return {name: value * factor.view(-1, *[1] * (self._rank(name, value))) for name, value in tensors.items()}

    def dot(self, one: Tensors, other: Tensors) -> Tensor:
        """See :meth:`commonground.algorithms.Client.dot`."""
        products = [value * other[name] for name, value in one.items()]
        return torch.stack([p.expand(len(self.clients), *p.shape[1:]).flatten(1).sum(1) for p in products]).sum(0)

    def _rank(self, name: str, value: Tensor) -> int:
        """Dimensions of one client's tensor."""
        model = self.setup.initial.get(name)
        return model.ndim if model is not None else value.ndim - 1

    def _own(self, values: Tensors) -> tuple[Tensors, Tensors]:
        """What loss and penalty see of the client: stacked entries, and common ones."""
        stacked = {name: value for name, value in values.items() if name in self._stacked}
        common = {name: value for name, value in values.items() if name not in self._stacked}
        return {**stacked, **self.state, "class_counts": self.class_counts}, common

    def step(self, direction: Tensors, lr: float | None = None) -> None:
        """See :meth:`commonground.algorithms.Client.step`."""
        rate = self.lr if lr is None else lr
        self.stack(list(direction))
        self.set({name: self.values[name] - rate * value for name, value in direction.items()})

    # -- forward ------------------------------------------------------------------------------------------------

    def _call(
        self, module: nn.Module, names: Mapping[str, str], values: Tensors, masks: Tensors, x: Tensor, features: bool
    ) -> tuple[Tensor, Tensor | None]:
        return call_stacked(module, names, values, self._stacked, masks, x, self.setup.head_module, features)

    def _losses(
        self,
        module: nn.Module,
        names: Mapping[str, str],
        values: Tensors,
        masks: Tensors,
        batch: Batch,
        loss: Loss | None,
        reference: Tensor | None = None,
    ) -> Tensor:
        """[C] mean loss of each client's batch (0 where it has none)."""
        if self.setup.folds and module is self.model:
            logits, features = call_folded(self.model, values, masks, batch, self.setup.head_module, loss is not None)
        else:
            logits, features = self._call(module, names, values, masks, batch.x, loss is not None)
        clients, rows = batch.y.shape
        if self.setup.language and loss is None:
            each = logits[..., 0]
        elif loss is None:
            each = F.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="none").view(clients, rows)
        else:
            own, common = self._own(values)
            given = {} if reference is None else {"reference": reference}
            each = vmap(lambda z, f, y, o, w, g: loss(Output(z, f, {**common, **o}, w, **g), y))(
                logits, features, batch.y, own, batch.weight, given
            )
        return (each * batch.weight).sum(1) / batch.weight.sum(1).clamp(min=1)

    def _penalties(self, penalty: Penalty, values: Tensors) -> Tensor:
        own, common = self._own(values)
        extra = {name: self.received[name] for name in self._received_stacked}
        return vmap(lambda o, e: penalty({**common, **o}, {**self.received, **e}))(own, extra)

    def _features(self, split: Split) -> Tensor:
        """Outputs of the frozen first part for every client, padded [C, n_max, …].

        While the first part is common to all, every sample of the cohort goes through it in one pass.
        """
        inner = names_inside(split.first, self.values)
        rows, _ = self._rows()
        arrange = self.setup.samples.arrange
        with torch.no_grad():
            if not any(name in self._stacked for name in inner if name not in split.rest_names or not split.captured):
                values = {i: self.values[n] if n not in self._stacked else self.values[n][0] for n, i in inner.items()}
                flat = torch.cat(
                    [
                        split.features(lambda x: functional_call(split.first, values, (x,)), arrange(chunk.clone()))
                        for chunk in rows.split(64 if self.setup.data.tokens else 4096)
                    ]
                )
                return self._pad(flat)
            if split.captured:
                raise ModelError("features of differing bodies need a model that is a chain of layers")
            padded = self._pad(rows)
            return self._call(split.first, inner, self.values, {}, arrange(padded), False)[0]

    def features(self) -> Tensor:
        """See :meth:`commonground.algorithms.Client.features`; stacked and padded [C, n_max, …]."""
        self.model.eval()
        padded = self.setup.samples.arrange(self._pad(self._rows()[0]))
        with torch.no_grad():
            if self.setup.folds:
                weight = torch.ones(padded.shape[:2], dtype=self.setup.samples.dtype)
                features = call_folded(
                    self.model, self.values, {}, Batch(padded, weight.long(), weight), self.setup.head_module, True
                )[1]
            else:
                names = names_inside(self.model, self.values)
                features = self._call(self.model, names, self.values, {}, padded, True)[1]
        assert features is not None
        return features

    def _pad(self, flat: Tensor) -> Tensor:
        """Rows of all clients one after the other [Σn, …] as [C, n_max, …], padded with the client's own rows."""
        position = torch.arange(int(self.sizes.max())).unsqueeze(0)
        inside = position.clamp(max=int(self.sizes.max())) % torch.from_numpy(self.sizes).unsqueeze(1)
        return flat[inside + self._starts().unsqueeze(1)]

    # -- training -----------------------------------------------------------------------------------------------

    def fit(
        self,
        group: str | Sequence[str],
        *,
        epochs: int | None = None,
        steps: int | None = None,
        samples: int | None = None,
        start: Tensor | int | None = None,
        lr: float | Sequence[float] | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        batch_size: int | None = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
        correction: Tensors | None = None,
        reference: Tensor | None = None,
    ) -> None:
        """See :meth:`commonground.algorithms.Client.fit`."""
        extras = _Extras(loss, penalty, correction, reference)
        names = self.setup.groups.trainable(group)
        order, last_epoch, schedules = self._schedules(
            train_length(self.setup.config, epochs, steps, samples, batch_size), start
        )
        if not names or not order.shape[1]:
            return
        lrs = rates_of_steps(self.lr if lr is None else lr, order.shape[1])
        rates = self.setup.rates(lrs[0], momentum, weight_decay)
        self.stack(names)
        # Each client decides by itself alone whether features are computed once; a cohort does if all would.
        whole = all(p.counts.sum() >= n for p, n in zip(schedules, self.sizes, strict=True))
        split = self.setup.training_split(frozenset(names)) if whole else None
        if split is not None and split.captured and any(n in self._stacked for n in self._outside(split)):
            split = None
        self.model.train()
        rows, y = self._rows()
        pool = _Pool(self.model, names_inside(self.model, self.values), rows, y, self._starts().view(-1, 1))
        arrange = self.setup.samples.arrange
        if split is not None:
            padded, labels = self._features(split), self._pad(y)
            if extras == _Extras() and is_linear_head(split, names) and len(set(lrs)) == 1:
                weight = self.values[names[0]]
                bias = self.values[names[1]] if len(names) > 1 else None
                self.loss = fit_linear_heads(weight, bias, padded, labels, order, rates, last_epoch)
                return
            starts = torch.arange(len(self.clients)).view(-1, 1) * padded.shape[1]
            pool = _Pool(split.rest, split.rest_names, padded.flatten(0, 1), labels.flatten(), starts)
            arrange = _as_is
        self._sgd(names, pool, arrange, order, last_epoch, schedules, rates, lrs, extras)

    def lr_after(self, done: float) -> float:
        """See :meth:`commonground.algorithms.Client.lr_after`."""
        return self.setup.lr_after(done)

    def _outside(self, split: Split) -> list[str]:
        return [name for name in self.values if name not in split.rest_names]

    def _sgd(
        self,
        names: Sequence[str],
        pool: _Pool,
        arrange: Callable[[Tensor], Tensor],
        order: Tensor,
        last_epoch: Tensor,
        schedules: Sequence[BatchSchedule],
        rates: Rates,
        lrs: Sequence[float],
        extras: _Extras,
    ) -> None:
        """Steps of all clients side by side; ``order`` and ``last_epoch`` as :meth:`_plans` gives them."""
        there = order >= 0
        active = there.any(2)  # [C, steps]
        ragged = (~active).any(0).tolist()
        positions = order.clamp(min=0) + pool.starts.unsqueeze(2)
        weights = there.to(self.setup.samples.dtype)
        buffers = {name: torch.zeros_like(self.values[name]) for name in names}
        total = torch.zeros(len(self.clients), dtype=self.setup.samples.dtype)
        seen = torch.zeros_like(total)
        phase = self._phase
        clients = torch.arange(len(self.clients)).unsqueeze(1)
        for step in range(order.shape[1]):
            index = positions[:, step]
            x = self._augmented(pool.rows[index], phase, step, schedules)
            batch = Batch(arrange(x), pool.labels[index], weights[:, step])
            masks = self._masks(phase, step, schedules, order.shape[2])
            leaves = {name: self.values[name].detach().requires_grad_() for name in names}
            values = {**self.values, **leaves}
            given = None if extras.reference is None else extras.reference[clients, order[:, step].clamp(min=0)]
            each = self._losses(pool.module, pool.names, values, masks, batch, extras.loss, given)
            recorded = (last_epoch <= step) * weights[:, step].sum(1)
            total += each.detach() * recorded
            seen += recorded
            if extras.penalty is not None:
                each = each + self._penalties(extras.penalty, values)
            gradients = torch.autograd.grad(each.sum(), list(leaves.values()))
            self._active = active[:, step] if ragged[step] else None
            for name, gradient in zip(names, gradients, strict=True):
                value, buffer = self.values[name], buffers[name]
                if extras.correction is not None and name in extras.correction:
                    gradient = gradient + extras.correction[name]
                if rates.weight_decay:
                    gradient = gradient.add(value, alpha=rates.weight_decay)
                moved = buffer.mul(rates.momentum).add_(gradient)
                buffers[name] = self._keep_inactive(buffer, moved)
                self.values[name] = self._keep_inactive(value, value.sub(moved, alpha=lrs[step]))
        self._active = None
        self.loss = total / seen.clamp(min=1)

    def batches(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        samples: int | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Batch]:
        """See :meth:`commonground.algorithms.Client.batches`."""
        order, _, schedules = self._schedules(train_length(self.setup.config, epochs, steps, samples, batch_size))
        phase = self._phase
        rows, y = self._rows()
        there = order >= 0
        positions = order.clamp(min=0) + self._starts().view(-1, 1, 1)
        try:
            for step in range(order.shape[1]):
                index = positions[:, step]
                self._active = there[:, step].any(1)
                masks = self._masks(phase, step, schedules, order.shape[2])
                weight = there[:, step].to(self.setup.samples.dtype)
                x = self._augmented(rows[index], phase, step, schedules)
                yield Batch(self.setup.samples.arrange(x), y[index], weight, masks)
        finally:
            self._active = None

    def gradient(
        self,
        group: str | Sequence[str],
        batch: Batch | None = None,
        *,
        at: Tensors | None = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
    ) -> Tensors:
        """See :meth:`commonground.algorithms.Client.gradient`; stacked."""
        names = self.setup.groups.trainable(group)
        self.stack(names)
        if batch is None:
            rows, y = self._rows()
            there = torch.arange(int(self.sizes.max())).unsqueeze(0) < torch.from_numpy(self.sizes).unsqueeze(1)
            labels = self._pad(y)
            masks = self._masks(0, 0, None, labels.shape[1])
            weight = there.to(self.setup.samples.dtype)
            batch = Batch(self.setup.samples.arrange(self._pad(rows)), labels, weight, masks)
        self.stack(list(at or {}))
        self.model.train()
        values = {**self.values, **{name: v.expand_as(self.values[name]) for name, v in (at or {}).items()}}
        leaves = {name: values[name].detach().requires_grad_() for name in names}
        values |= leaves
        each = self._losses(self.model, names_inside(self.model, values), values, batch.masks or {}, batch, loss)
        before = torch.full_like(each, float("nan")) if self.loss is None else self.loss
        self.loss = self._keep_inactive(before.detach(), each.detach())
        if penalty is not None:
            each = each + self._penalties(penalty, values)
        gradients = torch.autograd.grad(each.sum(), list(leaves.values()))
        return dict(zip(names, gradients, strict=True))


def _as_is(rows: Tensor) -> Tensor:
    return rows
