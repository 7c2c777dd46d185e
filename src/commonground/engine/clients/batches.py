"""Which samples make up which mini-batch, drawn by key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from commonground.config import RunConfig
from commonground.errors import ConfigError
from commonground.keys import numpy_stream

__all__ = ["BatchSchedule", "Rates", "TrainLength", "batch_schedule", "rates_of_steps", "train_length"]


@dataclass(frozen=True)
class Rates:
    """Settings of SGD in one call of ``fit``."""

    lr: float
    momentum: float
    weight_decay: float


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


class TrainLength(TypedDict):
    """How much one call of ``fit`` trains: exactly one of epochs, steps and samples, in batches of a size."""

    epochs: int | None
    steps: int | None
    samples: int | None
    batch_size: int


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
) -> BatchSchedule:
    """Shuffle a client's samples anew for each epoch and cut them into batches.

    Args:
        seed, round, client, phase: the key of the draw; ``phase`` counts the calls of ``fit`` in the round.
        size: the client's number of training samples.
        batch_size: samples in a batch; the last of an epoch holds what is left.
        epochs, steps, samples: how much to schedule; exactly one is given.
        start: with ``steps``: the first of them in the client's one unending order, which has epoch after epoch and
            does not depend on round and phase.

    Raises:
        ConfigError: none or several of epochs, steps, samples, or a negative one; a start without steps.
    """
    given = [(name, n) for name, n in (("epochs", epochs), ("steps", steps), ("samples", samples)) if n is not None]
    if len(given) != 1 or given[0][1] < 0:
        raise ConfigError(f"exactly one of epochs, steps and samples must be given, at least 0, not {dict(given)}")
    if start is not None and (steps is None or start < 0):
        raise ConfigError(f"a start ({start}) must be at least 0 and needs a number of steps")
    batch_size = min(batch_size, size)
    per_epoch = math.ceil(size / batch_size)
    if start is not None and steps is not None:
        first, behind = divmod(start, per_epoch)
        rngs = [numpy_stream(seed, "order", client, e) for e in range(first, math.ceil((start + steps) / per_epoch))]
        order = np.full((len(rngs), per_epoch * batch_size), -1, dtype=np.int64)
        for row, rng in zip(order, rngs, strict=True):
            row[:size] = rng.permutation(size)
        order = order.reshape(len(rngs) * per_epoch, batch_size)[behind : behind + steps]
        return BatchSchedule(order, (order >= 0).sum(axis=1), max(0, steps - per_epoch))
    if epochs is None:
        epochs = math.ceil(steps / per_epoch) if steps is not None else math.ceil((samples or 0) / size)
    rng = numpy_stream(seed, "batches", round, client, phase)
    shuffled = rng.permuted(np.tile(np.arange(size), (epochs, 1)), axis=1)
    padded = np.full((epochs, per_epoch * batch_size), -1, dtype=np.int64)
    padded[:, :size] = shuffled
    order = padded.reshape(epochs * per_epoch, batch_size)
    if steps is not None:
        order = order[:steps]
    if samples is not None:
        kept = np.cumsum(order >= 0).reshape(order.shape) <= samples
        order = np.where(kept, order, -1)
    counts = (order >= 0).sum(axis=1)
    order, counts = order[counts > 0], counts[counts > 0]
    return BatchSchedule(order, counts, max(0, (epochs - 1) * per_epoch))


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
