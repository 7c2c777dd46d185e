"""Which samples make up which mini-batch, drawn by key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.config import RunConfig
from commonground.data.inputs import to_device
from commonground.errors import ConfigError
from commonground.keys import numpy_stream
from commonground.ranges import MOST_SCHEDULED

__all__ = [
    "BatchSchedule",
    "CohortSchedule",
    "Length",
    "TrainLength",
    "batch_schedule",
    "check_lengths",
    "knowing_rows",
    "passes",
    "rates_of_steps",
    "real_rows",
    "train_length",
]


@dataclass(frozen=True)
class BatchSchedule:
    """The mini-batches of one client in one call of ``fit``.

    Attributes:
        order: [steps, batch size] positions in the client's training data; −1 where a batch is shorter.
        counts: [steps] samples in each batch.
        last_epoch: index of the first step of the last pass over the data.
    """

    order: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    last_epoch: int

    @property
    def steps(self) -> int:
        """Number of mini-batches."""
        return len(self.counts)


class CohortSchedule:
    """The mini-batches of clients side by side, moved to a device once.

    Args:
        schedules: of each client.
        dtype: the model's number type.
        device: where training happens.

    Attributes:
        steps: of the client that has most.
        width: samples in the largest batch.
        full: [C] samples in each client's full batches.
        counts: [C, steps] samples in each batch, on the host.
        last_epoch: [C] first step of each client's last pass, on the host.
        planned: [C, steps, width] positions in each client's training data; −1 where a batch is shorter, on the host.
        order: the same, on the device.
    """

    def __init__(self, schedules: Sequence[BatchSchedule], dtype: torch.dtype, device: torch.device) -> None:
        self.steps = max(s.steps for s in schedules)
        self.width = max(s.order.shape[1] for s in schedules)
        self.full = [int(s.order.shape[1]) for s in schedules]
        self.last_epoch = np.array([s.last_epoch for s in schedules])
        order = np.full((len(schedules), self.steps, self.width), -1, dtype=np.int64)
        self.counts = np.zeros((len(schedules), self.steps), dtype=np.int64)
        for row, count, schedule in zip(order, self.counts, schedules, strict=True):
            row[: schedule.steps, : schedule.order.shape[1]] = schedule.order
            count[: schedule.steps] = schedule.counts
        self.own_steps = to_device(torch.tensor([s.steps for s in schedules], dtype=dtype, device="cpu"), device)
        self.planned = torch.from_numpy(order)
        self.order = to_device(self.planned, device)
        self._dtype, self._device = dtype, device
        self._ragged = (self.counts == 0).any(0).tolist()
        self._active = to_device(torch.from_numpy(self.counts > 0), device) if any(self._ragged) else None

    @cached_property
    def weights(self) -> Tensor:
        """[C, steps, width] 1 for a sample and 0 for padding, on the device."""
        return (self.order >= 0).to(self._dtype)

    @cached_property
    def places(self) -> Tensor:
        """[C, steps, width] positions in each client's training data; the first one where a batch is shorter."""
        return self.order.clamp(min=0)

    def where(self, device: torch.device) -> Tensor:
        """``order`` on a device that rows are on: that of the training, or the host."""
        return self.order if device == self._device else self.planned

    def weight(self, step: int) -> Tensor:
        """A step's part of ``weights``, with what the host knows of it."""
        return knowing_rows(self.weights[:, step], self._real[step])

    @cached_property
    def _real(self) -> Sequence[Tensor]:
        """Of each step, which of its C · width rows are no padding, on the host."""
        real = self.planned.transpose(0, 1).flatten(1) >= 0
        parts: Sequence[Tensor] = torch.nonzero(real)[:, 1].split(real.sum(1).tolist())
        return parts

    def active(self, step: int) -> Tensor | None:
        """[C] which clients have a batch at a step; None if all have."""
        return self._active[:, step] if self._active is not None and self._ragged[step] else None

    def active_at(self, at: Tensor) -> Tensor:
        """[C] as :meth:`active` of a ragged step whose number [1] the device knows."""
        assert self._active is not None
        return self._active.index_select(1, at).squeeze(1)

    def recorded(self) -> Tensor:
        """[C, steps] the samples of each batch whose losses count: those of the client's last pass."""
        last = self.last_epoch[:, np.newaxis] <= np.arange(self.steps)
        return to_device(torch.from_numpy(last * self.counts).to(self._dtype), self._device)


def knowing_rows(weight: Tensor, there: Tensor) -> Tensor:
    """The weights of a batch [C, B], with what the host knows of them (:func:`real_rows`): what a method makes of them,
    or changes in them, does not have it.
    """
    vars(weight)["known_rows"] = weight._version, there
    return weight


def real_rows(weight: Tensor) -> Tensor:
    """Positions of the rows that are no padding among those of all clients [C, B], one client after the other; on the
    host. Where that is not known there, the device is waited for.
    """
    version, there = vars(weight).get("known_rows", (None, None))
    if there is not None and version == weight._version:
        return there  # type: ignore[no-any-return]
    return torch.nonzero(weight.flatten() > 0).squeeze(1).cpu()


class TrainLength(TypedDict):
    """How much one call of ``fit`` trains: exactly one of epochs, steps and samples, in batches of a size."""

    epochs: int | None
    steps: int | None
    samples: int | None
    batch_size: int


@dataclass(frozen=True)
class Length:
    """How much a call of ``fit`` trains, and whether it goes on in the client's one unending order."""

    length: TrainLength
    goes_on: bool

    def passes(self, size: int) -> int:
        """In how many of its steps a client of ``size`` examples may use one of them."""
        batch = min(self.length["batch_size"], size)
        per_epoch = math.ceil(size / batch)
        if self.length["epochs"] is not None:
            return int(self.length["epochs"])
        if self.length["steps"] is None:
            return math.ceil((self.length["samples"] or 0) / size)
        # One that goes on may begin with an epoch's last step.
        return math.ceil((self.length["steps"] + (per_epoch - 1 if self.goes_on else 0)) / per_epoch)


def passes(lengths: Iterable[Length], size: int) -> int:
    """As :meth:`Length.passes`, of several calls."""
    return sum(length.passes(size) for length in lengths)


def train_length(
    config: RunConfig, epochs: int | None, steps: int | None, samples: int | None, batch_size: int | None
) -> TrainLength:
    """What a call asks for; where it does not say, the run's local steps or epochs, and its batch size."""
    if epochs is None and steps is None and samples is None:
        steps = config.local_steps
        epochs = config.local_epochs if steps is None else None
    return TrainLength(epochs=epochs, steps=steps, samples=samples, batch_size=batch_size or config.batch_size)


def batch_schedule(
    seed: int,
    round: int,
    client: int,
    phase: int,
    *,
    size: int,
    batch_size: int,
    epochs: int | None = None,
    steps: int | None = None,
    samples: int | None = None,
    start: int | None = None,
    share: float = 1.0,
) -> BatchSchedule:
    """Shuffle a client's samples anew for each epoch and cut them into batches.

    Args:
        seed, round, client, phase: the key of the draw; ``phase`` counts the calls of ``fit`` in the round.
        size: the client's number of training samples.
        batch_size: samples in a batch; the last of an epoch holds what is left.
        epochs, steps, samples: how much to schedule; exactly one is given.
        start: with ``steps``: the first of them in the client's one unending order, which has epoch after epoch and
            does not depend on round and phase.
        share: of the samples to schedule (at least one of them), drawn by the same key; not with a start.

    Raises:
        ConfigError: none or several of epochs, steps, samples, or a negative one; a start without steps; a share
            that is none.
    """
    if share != 1:
        if not 0 < share < 1 or start is not None:
            raise ConfigError(f"a share of the samples ({share}) must be in (0, 1], and goes without a start")
        chosen = numpy_stream(seed, "share", round, client, phase).permutation(size)[: max(1, int(share * size))]
        part = batch_schedule(
            seed, round, client, phase, size=len(chosen), batch_size=batch_size, epochs=epochs, steps=steps,
            samples=samples,
        )  # fmt: skip
        return replace(part, order=np.where(part.order < 0, -1, chosen[part.order]))
    given = [(name, n) for name, n in (("epochs", epochs), ("steps", steps), ("samples", samples)) if n is not None]
    if len(given) != 1 or given[0][1] < 0:
        raise ConfigError(f"exactly one of epochs, steps and samples must be given, at least 0, not {dict(given)}")
    if start is not None and (steps is None or start < 0):
        raise ConfigError(f"a start ({start}) must be at least 0 and needs a number of steps")
    batch_size = min(batch_size, size)
    per_epoch = math.ceil(size / batch_size)
    _check_length(size, batch_size, *given[0])
    if start is not None and steps is not None:
        first, behind = divmod(start, per_epoch)
        rngs = [numpy_stream(seed, "order", client, e) for e in range(first, math.ceil((start + steps) / per_epoch))]
        shuffled = np.array([rng.permutation(size) for rng in rngs], dtype=np.int64).reshape(-1, size)
        order, counts = (each[behind : behind + steps] for each in _in_batches(shuffled, batch_size))
        return BatchSchedule(order, counts, max(0, steps - per_epoch))
    if epochs is None:
        epochs = math.ceil(steps / per_epoch) if steps is not None else math.ceil((samples or 0) / size)
    shuffled = np.empty((epochs, size), dtype=np.int64)
    shuffled[:] = np.arange(size)
    numpy_stream(seed, "batches", round, client, phase).permuted(shuffled, axis=1, out=shuffled)
    order, counts = _in_batches(shuffled, batch_size)
    if steps is not None:
        order, counts = order[:steps], counts[:steps]
    if samples is not None:
        kept = np.cumsum(order >= 0).reshape(order.shape) <= samples
        order = np.where(kept, order, -1)
        counts = (order >= 0).sum(axis=1)
        order, counts = order[counts > 0], counts[counts > 0]
    return BatchSchedule(order, counts, max(0, (epochs - 1) * per_epoch))


def _in_batches(epochs: npt.NDArray[np.int64], batch_size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Positions [epochs, size] cut into batches: [steps, batch size], −1 where an epoch's last one is shorter, and how
    many samples each has [steps].
    """
    count, size = epochs.shape
    per_epoch = math.ceil(size / batch_size)
    counts = np.full(count * per_epoch, batch_size)
    if short := per_epoch * batch_size - size:
        epochs = np.pad(epochs, ((0, 0), (0, short)), constant_values=-1)
        counts[per_epoch - 1 :: per_epoch] -= short
    return epochs.reshape(-1, batch_size), counts


def check_lengths(config: RunConfig, largest: int) -> None:
    """Refuse a run's own lengths of local training before it starts; a method's are looked at when it asks for them.

    Args:
        config: of the run.
        largest: training samples of the largest client.

    Raises:
        ConfigError: names the setting, and what is possible.
    """
    for name, kind in (("local_epochs", "epochs"), ("local_steps", "steps"), ("finetune_epochs", "epochs")):
        _check_length(largest, min(config.batch_size, largest), kind, getattr(config, name) or 0, f"'{name}' is ")


def _check_length(size: int, batch_size: int, kind: str, count: int, what: str = "") -> None:
    """Refuse a call of training whose order of samples would not fit in memory."""
    each = {"epochs": size, "steps": batch_size, "samples": 1}[kind]
    if count * each > MOST_SCHEDULED:
        raise ConfigError(
            f"{what}{count:,}, and so many {kind} over a client's {size:,} training samples are too much for one call "
            f"of training, which draws their order at once; up to {MOST_SCHEDULED // each:,} are possible"
        )


def rates_of_steps(lr: float | Sequence[float], steps: int) -> list[float]:
    """One learning rate for each step.

    Args:
        lr: one for all, or already one for each.
        steps: their number.

    Raises:
        ConfigError: another number of rates.
    """
    if isinstance(lr, int | float):
        return [float(lr)] * steps
    if len(lr) != steps:
        raise ConfigError(f"{len(lr)} learning rates were given for {steps} steps")
    return [float(value) for value in lr]
