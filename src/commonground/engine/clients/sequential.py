"""One client's local training on a working model: what the serial and process engines and a remote client run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.keys import torch_stream
from commonground.models import Split, tensors_of

__all__ = ["SequentialClient"]

# Convolutions over a few dozen images stay in the cache; a whole client at once runs at half the speed.
FEATURE_CHUNK = 25


class SequentialClient(Client):
    """The verbs for one client at a time, on one module whose tensors are overwritten for each client.

    Args:
        setup: data, model and algorithm.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.model = setup.model
        self.live = tensors_of(setup.model)
        self.dropouts = setup.dropouts  # found by trying the model in evaluation mode, so before any training
        self._parameters = {n: p for n, p in setup.model.named_parameters() if n in self.live}
        self.local_epochs, self.local_steps = setup.config.local_epochs, setup.config.local_steps
        self.momentum, self.weight_decay = setup.config.momentum, setup.config.weight_decay
        self.seed, self.rounds = setup.config.seed, setup.config.rounds
        self._index: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def begin(self, round: int, client: int, key: int, shared: Tensors, personal: Tensors) -> None:
        """Take up a client's round.

        Args:
            round: 1-based round.
            client: the client's position in the data set at hand.
            key: the client's number in the federation, which keys its draws.
            shared: tensors received from the server.
            personal: the client's own tensors.
        """
        self.round, self.key, self.received = round, key, shared
        self.lr = self.setup.lr_at(round)
        self._phase = 0
        self._index = self.setup.data.train_indices(client)
        self.setup.keep_hidden("train", [client])
        self._loaded: tuple[Tensor, Tensor] | None = None
        self.loss: float | None = None
        self.state = {name: personal[name].clone() for name in self.setup.state_names}
        labels = torch.from_numpy(self.setup.data.y_train[self._index])
        self.class_counts = torch.bincount(labels, minlength=self.setup.data.classes).to(self.setup.samples.dtype)
        with torch.no_grad():
            for name, value in {**shared, **personal}.items():
                if name in self.live:
                    self.live[name].copy_(value)
            for name, counter in self.setup.model.named_buffers():
                if name.endswith("num_batches_tracked"):
                    counter.zero_()  # the counters belong to no client: a cumulative average starts with the round

    def _own(self) -> Tensors:
        return {**self.live, **self.state, "class_counts": self.class_counts}

    @property
    def size(self) -> int:
        """The client's number of training samples."""
        return len(self._index)

    def _data(self) -> tuple[Tensor, Tensor]:
        """All of the client's training data: rows in storage order [n, …] and labels [n]."""
        if self._loaded is None:
            self._loaded = self.setup.samples.rows("train", self._index)
        return self._loaded

    def _schedule(self, wanted: TrainLength, start: Tensor | int | None = None) -> tuple[BatchSchedule, int]:
        self._phase += 1
        schedule = batch_schedule(
            self.setup.config.seed,
            self.round,
            self.key,
            self._phase,
            size=self.size,
            start=None if start is None else int(start),
            **wanted,
        )
        self.steps = torch.tensor(float(schedule.steps), dtype=self.setup.samples.dtype)
        return schedule, self._phase

    def _masks(self, phase: int, step: int, rows: int, full: int) -> Tensors:
        """Every dropout layer's mask for a step, by layer; drawn for a full batch, cut to the rows at hand."""
        masks: Tensors = {}
        for name, (layer, shape) in self.dropouts.items():
            stream = torch_stream(self.setup.config.seed, "dropout", self.round, self.key, phase, step, name)
            masks[name] = layer.draw(full, shape, stream, self.setup.samples.dtype)[:rows]
        return masks

    def _drop(self, masks: Tensors) -> None:
        """Give every dropout layer its mask."""
        for name, mask in masks.items():
            self.dropouts[name][0].mask = mask

    @contextmanager
    def _training(self, names: Sequence[str], group: str | Sequence[str]) -> Iterator[list[nn.Parameter]]:
        """Training mode, with gradients for the named parameters alone; frozen normalisation keeps its statistics."""
        wanted, whole = set(names), set(self.setup.groups.whole(group))
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in wanted)
        self.model.train()
        for name, module in self.model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                # A layer without weights belongs to the group that its statistics are in.
                trained = f"{name}.weight" in wanted if module.affine else f"{name}.running_mean" in whole
                module.train(trained)
        try:
            yield [self._parameters[name] for name in names]
        finally:
            for parameter in self._parameters.values():
                parameter.requires_grad_(True)

    def _features(self, split: Split) -> Tensor:
        """Outputs of the frozen first part for all of the client's training data [n, …]."""
        rows, _ = self._data()
        with torch.no_grad():
            parts = [
                split.features(split.first, self.setup.samples.arrange(chunk.clone()))
                for chunk in rows.split(FEATURE_CHUNK)
            ]
        return torch.cat(parts)

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
        names = self.setup.groups.trainable(group)
        schedule, phase = self._schedule(train_length(self.setup.config, epochs, steps, samples, batch_size), start)
        lrs = rates_of_steps(self.lr if lr is None else lr, schedule.steps)
        rates = self.setup.rates(lrs[0] if lrs else self.lr, momentum, weight_decay)
        if not names or not schedule.steps:
            return
        # Features are worth computing once if the phase goes over the whole data at least once.
        split = self.setup.training_split(frozenset(names)) if schedule.counts.sum() >= self.size else None
        with self._training(names, group) as parameters:
            module: nn.Module = self.model
            rows, y = self._data()
            x, arrange = rows, self.setup.samples.arrange
            if split is not None:
                x, arrange, module = self._features(split), _as_is, split.rest
                plain = loss is None and penalty is None and correction is None and len(set(lrs)) == 1
                if plain and is_linear_head(split, names):
                    self.loss = self._fit_linear(parameters, x, y, schedule, rates)
                    return
            optimizer = torch.optim.SGD(
                parameters, rates.lr, rates.momentum, weight_decay=rates.weight_decay, fused=True
            )
            order = torch.from_numpy(schedule.order)
            full = schedule.order.shape[1]
            total, seen = 0.0, 0
            record: list[Tensor] = []
            for step, count in enumerate(schedule.counts.tolist()):
                index = order[step, :count]
                self._drop(self._masks(phase, step, count, full))
                optimizer.param_groups[0]["lr"] = lrs[step]
                given = None if reference is None else reference[index]
                batch = self.setup.augmented(x[index], (self.round, self.key, phase, step), full)
                value = self._loss(module, arrange(batch), y[index], loss, given)
                if step >= schedule.last_epoch:
                    record.append(value.detach() * count)
                    seen += count
                if penalty is not None:
                    value = value + penalty(self._own(), self.received)
                optimizer.zero_grad()
                value.backward()
                if correction is not None:
                    for name, parameter in zip(names, parameters, strict=True):
                        if name in correction and parameter.grad is not None:
                            parameter.grad.add_(correction[name])
                optimizer.step()
            total = float(torch.stack(record).sum())
            self.loss = total / seen

    def lr_after(self, done: float) -> float:
        """See :meth:`commonground.algorithms.Client.lr_after`."""
        return self.setup.lr_after(done)

    def _fit_linear(
        self, parameters: list[nn.Parameter], features: Tensor, y: Tensor, schedule: BatchSchedule, rates: Rates
    ) -> float:
        weight = parameters[0].data.unsqueeze(0)
        bias = parameters[1].data.unsqueeze(0) if len(parameters) > 1 else None
        losses = fit_linear_heads(
            weight,
            bias,
            features.unsqueeze(0),
            y.unsqueeze(0),
            torch.from_numpy(schedule.order).unsqueeze(0),
            rates,
            torch.tensor([schedule.last_epoch]),
        )
        return float(losses[0])

    def _loss(
        self, module: nn.Module, x: Tensor, y: Tensor, loss: Loss | None, reference: Tensor | None = None
    ) -> Tensor:
        """Mean loss of a batch."""
        try:
            if self.setup.language and loss is None:
                own: Tensor = module(x)[:, 0].mean()
                return own
            if loss is None:
                return F.cross_entropy(module(x), y)
            return loss(self._output(module, x, reference), y).mean()
        except ValueError as error:
            if len(y) > 1:
                raise
            raise ModelError(
                f"client {self.key} has a batch of a single sample, of which BatchNorm has no statistics; choose a "
                f"--batch-size that does not leave one over ({error})"
            ) from None

    def features(self) -> Tensor:
        """See :meth:`commonground.algorithms.Client.features`."""
        rows, _ = self._data()
        self.model.eval()
        with torch.no_grad():
            chunks = [self.setup.samples.arrange(chunk.clone()) for chunk in rows.split(FEATURE_CHUNK)]
            return torch.cat([self._output(self.model, chunk).features for chunk in chunks])

    def _output(self, module: nn.Module, x: Tensor, reference: Tensor | None = None) -> Output:
        """Logits and what the head saw."""
        head = self.setup.head_module
        if head is None:
            raise ModelError("this method needs the head's input, but no single submodule of the model is its head")
        box: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, inputs: box.append(inputs[0]))
        try:
            logits = module(x)
            return Output(logits, box[0], self._own(), torch.ones(len(x), dtype=logits.dtype), reference)
        finally:
            handle.remove()

    def batches(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        samples: int | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Batch]:
        """See :meth:`commonground.algorithms.Client.batches`."""
        schedule, phase = self._schedule(train_length(self.setup.config, epochs, steps, samples, batch_size))
        rows, y = self._data()
        order = torch.from_numpy(schedule.order)
        for step, count in enumerate(schedule.counts.tolist()):
            index = order[step, :count]
            full = schedule.order.shape[1]
            masks = self._masks(phase, step, count, full)
            weight = torch.ones(count, dtype=self.setup.samples.dtype)
            x = self.setup.augmented(rows[index], (self.round, self.key, phase, step), full)
            yield Batch(self.setup.samples.arrange(x), y[index], weight, masks)

    def gradient(
        self,
        group: str | Sequence[str],
        batch: Batch | None = None,
        *,
        at: Tensors | None = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
    ) -> Tensors:
        """See :meth:`commonground.algorithms.Client.gradient`."""
        names = self.setup.groups.trainable(group)
        if batch is None:
            rows, y = self._data()
            weight = torch.ones(len(y), dtype=self.setup.samples.dtype)
            batch = Batch(self.setup.samples.arrange(rows.clone()), y, weight, self._masks(0, 0, len(y), len(y)))
        self._drop(batch.masks or {})
        with self._training(names, group), self._at(at or {}):
            value = self._loss(self.model, batch.x, batch.y, loss)
            self.loss = float(value.detach())
            if penalty is not None:
                value = value + penalty(self._own(), self.received)
            gradients = torch.autograd.grad(value, [self._parameters[name] for name in names])
        return dict(zip(names, gradients, strict=True))

    @contextmanager
    def _at(self, values: Tensors) -> Iterator[None]:
        """Put other values into the model for a while."""
        kept = {name: self.live[name].detach().clone() for name in values}
        self.set(values)
        try:
            yield
        finally:
            self.set(kept)

    def step(self, direction: Tensors, lr: float | None = None) -> None:
        """See :meth:`commonground.algorithms.Client.step`."""
        with torch.no_grad():
            for name, value in direction.items():
                self.live[name].sub_(value, alpha=self.lr if lr is None else lr)

    def keep(self, state: Tensors) -> None:
        """See :meth:`commonground.algorithms.Client.keep`."""
        self.state |= {name: value.detach().clone() for name, value in state.items()}

    def scale(self, tensors: Tensors, factor: Tensor | float) -> Tensors:
        """See :meth:`commonground.algorithms.Client.scale`."""
        return {name: value * factor for name, value in tensors.items()}

    def dot(self, one: Tensors, other: Tensors) -> Tensor:
        """See :meth:`commonground.algorithms.Client.dot`."""
        return torch.stack([(value * other[name]).sum() for name, value in one.items()]).sum()

    def get(self, group: str | Sequence[str]) -> Tensors:
        """See :meth:`commonground.algorithms.Client.get`."""
        return {name: self.live[name].detach().clone() for name in self.setup.groups.names(group)}

    def set(self, tensors: Tensors) -> None:
        """See :meth:`commonground.algorithms.Client.set`."""
        with torch.no_grad():
            for name, value in tensors.items():
                self.live[name].copy_(value)


def _as_is(rows: Tensor) -> Tensor:
    return rows
