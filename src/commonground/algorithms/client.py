"""The verbs of a client: one client, a stacked cohort of many, or the inside of a remote machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from commonground.keys import numpy_stream
from commonground.tasks import Objective

__all__ = ["Batch", "Client", "Loss", "Output", "Penalty", "Tensors", "prefixed", "unprefixed"]

Tensors = dict[str, Tensor]
"""Tensors by name. In a stacked cohort each has one more, leading axis (clients), which elementwise arithmetic and
everything given to ``loss=`` and ``penalty=`` never sees."""


class Output(NamedTuple):
    """What a loss sees of a batch.

    Attributes:
        logits: [rows, classes], what the model returns (for other tasks than classification, its outputs).
        features: [rows, …], the input of the head.
        own: what belongs to the client: its current tensors, its state, and ``class_counts`` [classes], the number
            of its training samples of each class.
        weight: [rows], 1 for a sample and 0 for padding, for losses that look at a batch as a whole.
        reference: [rows, …], the batch's part of what :meth:`Client.fit` was given as ``reference``.
    """

    logits: Tensor
    features: Tensor
    own: Tensors
    weight: Tensor
    reference: Tensor | None = None


class Batch(NamedTuple):
    """Inputs ``x`` by name, each [rows, …], targets ``y`` [rows, …] and ``weight`` [rows] (1 for a sample, 0 for
    padding); ``masks`` are the batch's dropout masks, so that several iterators may run side by side.
    """

    x: Tensors
    y: Tensor
    weight: Tensor
    masks: Tensors | None = None


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    """Model tensors under the names of a second copy of the model: ``fc.weight`` becomes ``own/fc.weight``."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def unprefixed(prefix: str, tensors: Tensors) -> Tensors:
    """The copy of the model that :func:`prefixed` named so, under the model's own names; all else is left out."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


Loss = Callable[[Output, Tensor], Tensor]
"""From a model's output and labels [rows] to one loss per sample [rows]; the verbs take the mean."""

Penalty = Callable[[Tensors, Tensors], Tensor | float]
"""From (the client's own tensors as in ``Output.own``, tensors received from the server) to a scalar that is added to
the mean loss."""


class Client(ABC):
    """The verbs of a client.

    Attributes:
        received: what the server sent this round, by name (never changes during the round).
        state: the client's own extra tensors (:meth:`Algorithm.client_state`), by name; changed by :meth:`keep`.
        class_counts: [classes] training samples of each class.
        steps: mini-batch steps of the last :meth:`fit` or :meth:`batches` (in a cohort one number per client).
        rounds: rounds of the run.
        local_epochs, local_steps: the run's ``--local-epochs`` and ``--local-steps``.
        lr: this round's learning rate.
        momentum, weight_decay: the run's, which :meth:`fit` uses and :meth:`step` leaves to the method (as it does the
            run's ``--optimizer``).
        task: what training minimises (the task's loss, or the user's), for a ``loss=`` that adds to it.
    """

    received: Tensors
    state: Tensors
    class_counts: Tensor
    steps: Tensor
    local_epochs: int
    local_steps: int | None
    lr: float
    momentum: float
    weight_decay: float
    seed: int
    round: int
    rounds: int
    task: Objective

    @abstractmethod
    def lr_after(self, done: float) -> float:
        """The learning rate when this share of the run is done (``lr`` is that of the round's start)."""

    def draw(self, purpose: str) -> float:
        """A uniform number in [0, 1) that is the same for all clients and the server in this round."""
        return float(numpy_stream(self.seed, purpose, self.round).random())

    @abstractmethod
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
        """Train a parameter group with the run's optimizer, by default mini-batch SGD, and leave everything else fixed.

        What it remembers starts fresh at each call, as in the papers' code. Batches are reshuffled each epoch; the last
        one of an epoch may be smaller.

        Args:
            group: the group's name or several.
            epochs: passes over the client's training data (default: the run's ``--local-epochs`` or, where given,
                ``--local-steps``); or give
            steps: a number of mini-batch steps; or
            samples: a number of samples to draw, the last batch cut to fit.
            start: with ``steps``: take them from the client's one unending order of batches, from this step on (in a
                cohort a number per client), so that calls continue each other instead of beginning a new epoch.
            lr: learning rate, or one for each of the ``steps``.
            lr, momentum, weight_decay, batch_size: default to the run's settings.
            loss: replaces the task's loss.
            penalty: added to the mean loss of each batch.
            correction: added to each gradient, by name.
            reference: a constant for each training sample, such as :meth:`features`, for the loss to compare with.
        """

    @abstractmethod
    def features(self) -> Tensor:
        """What the head sees of each of the client's training samples [n, …] under the current weights, without dropout
        and without gradients.
        """

    @abstractmethod
    def class_means(self) -> Tensor:
        """The mean of :meth:`features` over the training samples of each class [classes, F]; zero for a class that the
        client lacks.
        """

    @abstractmethod
    def batches(
        self,
        *,
        epochs: int | Tensor | None = None,
        steps: int | None = None,
        samples: int | None = None,
        batch_size: int | None = None,
        share: float = 1.0,
    ) -> Iterator[Batch]:
        """Mini-batches as :meth:`fit` would take them. Inside the loop, every verb leaves a client of a stacked cohort
        alone that has no batch left. Loops may stand within one another and iterators side by side (``zip``); to begin
        one anew that has ended (``itertools.cycle``) is for clients of one size.

        Args:
            epochs, steps, samples, batch_size: as in :meth:`fit`; the epochs may also be whole numbers on the host, in
                a cohort one for each client.
            share: of the client's samples that the batches are taken from (at least one sample), drawn by key at each
                call.
        """

    @abstractmethod
    def gradient(
        self,
        group: str | Sequence[str],
        batch: Batch | None = None,
        *,
        at: Tensors | None = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
    ) -> Tensors:
        """Gradient of the mean loss with respect to a group.

        Args:
            group: what to differentiate for.
            batch: from :meth:`batches`; by default all training data of the client.
            at: values to use in place of the current ones, by name.
            loss, penalty: as in :meth:`fit`.
        """

    @abstractmethod
    def mean_loss(self, batch: Batch | None = None, *, at: Tensors | None = None, loss: Loss | None = None) -> Tensor:
        """The mean loss of the model as a test would meet it (no dropout, no change of images, running statistics), for
        methods that compare models by it (in a cohort one number per client). It has no gradient.

        Args:
            batch: from :meth:`batches`; by default all training data of the client.
            at: values to use in place of the current ones, by name.
            loss: as in :meth:`fit`.
        """

    @abstractmethod
    def step(self, direction: Tensors, lr: float | None = None) -> None:
        """One plain step: every named tensor moves by −lr times its direction."""

    @abstractmethod
    def get(self, group: str | Sequence[str]) -> Tensors:
        """A copy of a group's current values."""

    @abstractmethod
    def set(self, tensors: Tensors) -> None:
        """Replace current values by name."""

    @abstractmethod
    def keep(self, state: Tensors) -> None:
        """Replace entries of ``state`` by name; they are there in the client's next round and never leave it.

        Raises:
            ModelError: a name, shape or kind of number that ``client_state`` does not declare.
        """

    @abstractmethod
    def scale(self, tensors: Tensors, factor: Tensor | float) -> Tensors:
        """Tensors times a number (in a cohort possibly one per client, such as ``1 / client.steps``).

        In a cohort a name tells whether a tensor has a place for each client: one of the model's or of a declared
        state. Under another name it is taken to have one if its first dimension is as long as the cohort, unless it is
        a tensor of ``received`` itself.
        """

    @abstractmethod
    def dot(self, one: Tensors, other: Tensors) -> Tensor:
        """Inner product over all entries of equally named tensors (in a cohort one number per client; names as in
        :meth:`scale`).
        """

    def send(self, group: str | Sequence[str] | Tensors) -> Tensors:
        """What goes to the server: a copy of a group's values, or the given tensors."""
        return dict(group) if isinstance(group, dict) else self.get(group)
