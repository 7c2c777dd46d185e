"""One client's local training on a working model: what the serial and process engines and a remote client run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from commonground.algorithms import Batch, Output, Tensors
from commonground.algorithms.base import Loss, Penalty
from commonground.data.inputs import Inputs, chunks, each, first_of, select
from commonground.engine.clients.base import LocalTraining, Phase, Pool
from commonground.engine.clients.batches import CohortSchedule
from commonground.engine.clients.checked import checked_loss, checked_penalty
from commonground.engine.clients.draws import PhaseDraws
from commonground.engine.clients.example_gradients import ExampleGradients
from commonground.engine.clients.linear_head import fit_linear_heads
from commonground.engine.clients.optimizers import Rates, SequentialOptimizer, gradients_of
from commonground.engine.option_checks import check_own_steps
from commonground.engine.setup import Setup
from commonground.errors import LoneSampleError, ModelError
from commonground.models import ModelCut, call, tensors_of
from commonground.models.heads import inputs_of
from commonground.privacy import is_private_part, noisy_means

__all__ = ["SequentialClient", "feature_chunk"]

# On the host convolutions over a few dozen images stay in the cache; a whole client at once runs at half the speed. A
# device is busy with many, and its launches are what takes time.
FEATURE_CHUNK, DEVICE_NUMBERS = 25, 1 << 22


def feature_chunk(rows: Inputs, device: torch.device) -> int:
    """How many rows go through a network at once where no gradients are needed; of small images more on a device."""
    images = [value for value in rows.values() if value.ndim == 4]
    if device.type == "cpu" or not images or not len(images[0]):
        return FEATURE_CHUNK
    return max(FEATURE_CHUNK, DEVICE_NUMBERS // images[0][0].numel())


class SequentialClient(LocalTraining):
    """The verbs for one client at a time, on one module whose tensors are overwritten for each client.

    Args:
        setup: data, model and algorithm.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.live = tensors_of(setup.model)
        self._parameters = {n: p for n, p in setup.model.named_parameters() if n in self.live}
        self._ones: dict[int, Tensor] = {}  # weights of whole batches, by their size

    def begin(self, round: int, client: int, key: int, shared: Tensors, personal: Tensors) -> None:
        """Take up a client's round.

        Args:
            round: 1-based round.
            client: the client's position in the data set at hand.
            key: the client's number in the federation, which keys its draws.
            shared: tensors received from the server.
            personal: the client's own tensors.
        """
        self._take_up(round, [client], [key])
        shared = {name: value for name, value in shared.items() if not is_private_part(name)}  # no business of a method
        self.received = shared = self.setup.in_order(self.setup.moved(shared))
        self._recorded: tuple[Tensor, int] | None = None
        self.state = self.setup.moved({name: personal[name].clone() for name in self.setup.state_names})
        self.class_counts = self._class_counts()[0]
        # What the server sends to this client alone replaces what it kept, under the same name.
        alone = {name: shared[name] for name in self.setup.personal_names if name in shared}
        with torch.no_grad():
            for name, value in {**shared, **personal, **alone}.items():
                if name in self.live:
                    self.live[name].copy_(value)
            for name, counter in self.setup.model.named_buffers():
                if name.endswith("num_batches_tracked"):
                    counter.zero_()  # the counters belong to no client: a cumulative average starts with the round
        self.setup.behaviour.reset(self.setup.model)

    @property
    def size(self) -> int:
        """The client's number of training samples."""
        return int(self.sizes[0])

    @property
    def loss(self) -> float | None:
        """The mean loss over the last pass of the last training; None if there was none."""
        return None if self._recorded is None else float(self._recorded[0]) / self._recorded[1]

    def _own(self) -> Tensors:
        return {**self.live, **self.state, **self._counted()}

    def _drop(self, masks: Tensors) -> None:
        """Give every dropout layer its mask."""
        for name, mask in masks.items():
            self.dropouts[name.removesuffix(".mask")][0].mask = mask

    # -- training -----------------------------------------------------------------------------------------------

    def _look_at(self, loss: Loss | None, penalty: Penalty | None) -> None:
        """There is one client."""

    def _count_steps(self, schedule: CohortSchedule) -> None:
        self.steps = schedule.own_steps[0]

    @contextmanager
    def _training(self, names: Sequence[str], group: str | Sequence[str]) -> Iterator[None]:
        """Training mode, with gradients for the named parameters alone; frozen normalisation keeps its statistics."""
        wanted = set(names)
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in wanted)
        self._train_mode(names, group)
        try:
            yield
        finally:
            for parameter in self._parameters.values():
                parameter.requires_grad_(True)

    @contextmanager
    def _only(self, schedule: CohortSchedule, step: int) -> Iterator[None]:
        yield

    def _pool(self, split: ModelCut | None, names: Sequence[str]) -> Pool:
        rows, y = self._rows()
        if split is None:
            return Pool(self.model, {}, rows, y, self._starts())
        with torch.no_grad(), self.setup.autocast():
            parts = [
                split.features(partial(call, split.first), self.setup.inputs.arrange(each(torch.clone, chunk)))
                for chunk in chunks(rows, feature_chunk(rows, self.device))
            ]
        return Pool(split.rest, {}, {"x": self.setup.wide(torch.cat(parts))}, y, self._starts(), split)

    def _batch(self, pool: Pool, schedule: CohortSchedule, draws: PhaseDraws, step: int) -> Batch:
        count = int(schedule.counts[0, step])
        index = schedule.order[0, step, :count]
        if count not in self._ones:
            self._ones[count] = torch.ones(count, dtype=self.dtype, device=self.device)
        rows = select(pool.rows, schedule.where(first_of(pool.rows).device)[0, step, :count])
        y = pool.labels[index]
        if pool.split is None:
            if draws.augments:
                rows = each(lambda x: draws.change(x.unsqueeze(0), step)[0], rows)
            rows = self.setup.inputs.arrange(rows)
        masks = {name: mask[0, :count] for name, mask in draws.masks(step).items()}
        return Batch(rows, y, self._ones[count], masks)

    def _of_batch(self, reference: Tensor, schedule: CohortSchedule, step: int) -> Tensor:
        return reference[schedule.order[0, step, : int(schedule.counts[0, step])]]

    def _optimizer(self, names: Sequence[str], rates: Rates) -> SequentialOptimizer:
        return SequentialOptimizer({name: self._parameters[name] for name in names}, rates)

    def _batch_losses(
        self,
        module: nn.Module,
        names: Mapping[str, str],
        leaves: Tensors,
        batch: Batch,
        loss: Loss | None,
        reference: Tensor | None = None,
    ) -> Tensor:
        self._drop(batch.masks or {})
        try:
            if loss is not None:
                single = loss(self._output(module, batch, reference), batch.y)
                return checked_loss(single, len(batch.y)).mean()
            with self.setup.autocast():
                output = call(module, batch.x)
            return self.task.mean_loss(self.setup.wide(output), batch.y)
        except ValueError as error:
            if len(batch.y) > 1 or "more than 1 value per channel" not in str(error):
                raise
            raise LoneSampleError.of(self.keys[0], str(error)) from None
        finally:
            self.setup.behaviour.settle(self.model, self.live)

    def _clipped_sums(self, examples: ExampleGradients, leaves: Tensors, batch: Batch) -> tuple[Tensors, Tensor]:
        sums, loss = examples.of_one({name: leaf.detach() for name, leaf in leaves.items()}, batch)
        return sums, loss

    def _with_noise(self, sums: Tensors, schedule: CohortSchedule, step: int, std: float) -> Tensors:
        return noisy_means(sums, self._step_noise([sums], step)[0].unsqueeze(0), std, schedule.full)

    def _values(self) -> Tensors:
        return self.live

    def _penalties(self, penalty: Penalty, leaves: Tensors) -> Tensor:
        return checked_penalty(penalty({**self._own(), **leaves}, self.received), self.dtype, self.device)

    def _record(self, losses: Sequence[Tensor], schedule: CohortSchedule) -> None:
        first = int(schedule.last_epoch[0])
        counts = schedule.counts[0, first:].tolist()
        whole = torch.stack([loss * count for loss, count in zip(losses[first:], counts, strict=True)]).sum()
        self._recorded = whole, sum(counts)

    def _fit_linear_head(self, phase: Phase) -> None:
        heads = {name: self._parameters[name].data.unsqueeze(0) for name in phase.names}
        features, labels = phase.pool.rows["x"].unsqueeze(0), phase.pool.labels.unsqueeze(0)
        self._recorded = fit_linear_heads(heads, features, labels, phase.schedule, phase.rates)[0], 1

    # -- smaller verbs ------------------------------------------------------------------------------------------

    def features(self) -> Tensor:
        """See :meth:`commonground.algorithms.Client.features`."""
        self._needs_samples("features")
        rows, y = self._rows()
        self.model.eval()
        outputs = []
        size = len(y) if self.setup.behaviour.joins_tested else feature_chunk(rows, self.device)
        with torch.no_grad():
            for chunk in chunks(rows, size):
                part = Batch(self.setup.inputs.arrange(each(torch.clone, chunk)), y, y)
                outputs.append(self._output(self.model, part).features)
        return torch.cat(outputs)

    def class_means(self) -> Tensor:
        """See :meth:`commonground.algorithms.Client.class_means`."""
        self._needs_samples("class means")
        _, y = self._rows()
        there = torch.ones(len(y), dtype=self.dtype, device=self.device)
        return self._means_by_class(self.features().flatten(1), y, there)

    def _output(self, module: nn.Module, batch: Batch, reference: Tensor | None = None) -> Output:
        """Logits and what the head saw."""
        head = self.setup.head_module
        if head is None:
            raise ModelError("this method needs the head's input, but no single submodule of the model is its head")
        with inputs_of(head) as given, self.setup.autocast():
            logits = call(module, batch.x)
        logits, features = self.setup.wide(logits), self.setup.wide(given[0])
        weight = torch.ones(len(logits), dtype=logits.dtype, device=logits.device)
        return Output(logits, features, self._own(), weight, reference)

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
        self._needs_samples("gradients")
        names = self.setup.groups.trainable(group)
        batch = batch or self._whole()
        with self._training(names, group), self._at(at or {}):
            value = self._batch_losses(self.model, {}, {}, batch, loss)
            self._recorded = value.detach(), 1
            if penalty is not None:
                value = value + self._penalties(penalty, {})
            return gradients_of(value, {name: self._parameters[name] for name in names})

    def mean_loss(self, batch: Batch | None = None, *, at: Tensors | None = None, loss: Loss | None = None) -> Tensor:
        """See :meth:`commonground.algorithms.Client.mean_loss`."""
        self._needs_samples("the loss")
        batch = batch or self._whole(tested=True)
        self.model.eval()
        with torch.no_grad(), self._at(at or {}):
            return self._batch_losses(self.model, {}, {}, batch._replace(masks=None), loss)

    def _whole(self, *, tested: bool = False) -> Batch:
        """All training data as one batch, changed and masked at random unless it is to be tested on."""
        rows, y = self._rows()
        weight = torch.ones(len(y), dtype=self.dtype, device=self.device)
        if tested:
            return Batch(self.setup.inputs.arrange(each(torch.clone, rows)), y, weight)
        draws = self._draws_of_all()
        masks = {name: mask[0] for name, mask in draws.masks(0).items()}
        changed = each(lambda x: draws.change(x.unsqueeze(0), 0)[0], rows) if draws.augments else rows
        return Batch(self.setup.inputs.arrange(each(torch.clone, changed)), y, weight, masks)

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
        check_own_steps(self.setup.config, self.setup.algorithm)
        with torch.no_grad():
            for name, value in direction.items():
                self.live[name].sub_(value, alpha=self.lr if lr is None else lr)

    def keep(self, state: Tensors) -> None:
        """See :meth:`commonground.algorithms.Client.keep`."""
        self.state |= {name: value.clone() for name, value in self._kept(state)}

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
