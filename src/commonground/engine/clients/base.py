"""The skeleton of local training, written once: for one client and for a stacked cohort."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from commonground.algorithms import Batch, Tensors
from commonground.algorithms.base import Loss, Penalty
from commonground.data.inputs import Inputs, to_device
from commonground.engine.clients.batches import (
    CohortSchedule,
    Length,
    TrainLength,
    batch_schedule,
    rates_of_steps,
    train_length,
)
from commonground.engine.clients.checked import check_depends, is_constant
from commonground.engine.clients.draws import PhaseDraws
from commonground.engine.clients.example_gradients import ExampleGradients
from commonground.engine.clients.hiding import Hiding
from commonground.engine.clients.linear_head import is_linear_head
from commonground.engine.clients.optimizers import Rates, SequentialOptimizer, StackedOptimizer, gradients_of
from commonground.engine.clients.step_graphs import RecordedStep, StepGraphs, alike_steps
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.models import ModelCut
from commonground.privacy import ExamplePrivacy
from commonground.quoting import quoted
from commonground.suggest import meant

__all__ = ["LocalTraining", "Phase", "Pool"]


def kind_of(value: Tensor) -> str:
    """A tensor's number type, in a word: ``float32``."""
    return str(value.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Pool:
    """What a call of ``fit`` draws its batches from: a module and its inputs.

    Attributes:
        module: the model, or the rest of a split.
        names: names in the whole model to names inside ``module``.
        rows: inputs of all clients one after the other; in storage order, unless they are features.
        labels: their targets.
        starts: [C, 1] position of each client's first row.
        split: where the model is cut, if ``rows`` are the first part's outputs.
    """

    module: nn.Module
    names: Mapping[str, str]
    rows: Inputs
    labels: Tensor
    starts: Tensor
    split: ModelCut | None = None


@dataclass(frozen=True)
class Extras:
    """What a method adds to plain training: arguments of :meth:`~commonground.algorithms.Client.fit`."""

    loss: Loss | None = None
    penalty: Penalty | None = None
    correction: Tensors | None = None
    reference: Tensor | None = None

    @property
    def none(self) -> bool:
        """Whether it adds nothing."""
        return self.loss is None and self.penalty is None and self.correction is None and self.reference is None


@dataclass(frozen=True)
class Phase:
    """A call of ``fit``, resolved.

    Attributes:
        names: of the trained parameters.
        pool: what batches are drawn from.
        schedule: the clients' batches.
        rates: settings of the optimizer.
        lrs: each step's learning rate.
        extras: what the method adds to plain training.
    """

    names: Sequence[str]
    pool: Pool
    schedule: CohortSchedule
    rates: Rates
    lrs: Sequence[float]
    extras: Extras


class LocalTraining(Hiding):
    """What the verbs of one client and of a cohort have in common: ``fit`` step by step, schedules, draws.

    Args:
        setup: data, model and algorithm.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.model = setup.model
        self.device, self.dtype = setup.device, setup.inputs.dtype
        self.dropouts = setup.dropouts  # found by trying the model in evaluation mode, so before any training
        self.local_epochs, self.local_steps = setup.config.local_epochs, setup.config.local_steps
        self.momentum, self.weight_decay = setup.config.momentum, setup.config.weight_decay
        self.seed, self.rounds = setup.config.seed, setup.config.rounds
        self.task = setup.objective
        self._graphs: StepGraphs | None = None  # only steps of clients side by side are recorded

    def _take_up(self, round: int, clients: Sequence[int], keys: Sequence[int]) -> None:
        """Begin a round.

        Args:
            round: 1-based round.
            clients: the clients' positions in the data set at hand.
            keys: their numbers in the federation, which key their draws.
        """
        self.round, self.keys = round, list(keys)
        self.lr = self.setup.lr_at(round)
        self._phases = [0] * len(self.keys)
        self._hidden = self.setup.examples  # unless `at_home` says that nothing of what follows is sent
        self._spent = []
        self._indices = [self.setup.data.train_indices(c) for c in clients]
        self.sizes = np.array([len(i) for i in self._indices])
        self.setup.keep_hidden("train", clients)
        self._loaded: tuple[Inputs, Tensor] | None = None

    def _class_counts(self) -> Tensor:
        """[C, classes] training samples of each class."""
        data = self.setup.data
        counts = np.stack([data.task.members(data.y_train[i], data.classes).sum(0) for i in self._indices])
        return to_device(torch.from_numpy(counts).to(self.dtype), self.device)

    def _rows(self) -> tuple[Inputs, Tensor]:
        """Training data of all clients one after the other: rows in storage order [Σn, …] and targets [Σn, …]."""
        if self._loaded is None:
            index = self._indices[0] if len(self._indices) == 1 else np.concatenate(self._indices)
            self._loaded = self.setup.inputs.rows("train", index)
        return self._loaded

    @cached_property
    def _zero(self) -> Tensor:
        return torch.zeros(1, 1, dtype=torch.int64, device=self.device)

    def _starts(self) -> Tensor:
        """[C, 1] position of each client's first sample in :meth:`_rows`."""
        return self._zero if len(self.sizes) == 1 else to_device(self._host_starts(), self.device)

    def _host_starts(self) -> Tensor:
        """As :meth:`_starts`, on the host."""
        return torch.from_numpy(np.cumsum(self.sizes) - self.sizes).unsqueeze(1)

    def _schedule(
        self, length: TrainLength, start: Tensor | int | None = None, epochs: Tensor | None = None, share: float = 1.0
    ) -> CohortSchedule:
        """The next phase's batches of all clients; ``epochs``, if given, are each client's own."""
        self._phases = [phase + there for phase, there in zip(self._phases, self._present(), strict=True)]
        places, lengths = self._of_each(start), [length] * len(self.keys)
        if epochs is not None:
            size = length["batch_size"]
            lengths = [TrainLength(epochs=e, steps=None, samples=None, batch_size=size) for e in self._of_each(epochs)]
        schedules = [
            batch_schedule(self.seed, self.round, key, phase, size=int(size), start=place, share=share, **own)
            for key, phase, size, place, own in zip(self.keys, self._phases, self.sizes, places, lengths, strict=True)
        ]
        return CohortSchedule(schedules, self.dtype, self.device)

    def _of_each(self, value: Tensor | int | None) -> list[int | None]:
        """A whole number of each client. Such numbers are counted on the host, so this waits for nothing."""
        count = len(self.keys)
        if value is None:
            return [None] * count
        values: list[int | None] = torch.as_tensor(value, device="cpu").expand(count).tolist()
        return values

    def _train_mode(self, names: Sequence[str], group: str | Sequence[str]) -> list[str]:
        """Put the model into training mode; normalisation whose weights are not among the names keeps its statistics.

        Returns:
            Names of the running statistics that training will move.
        """
        wanted, whole = set(names), set(self.setup.groups.whole(group))
        self.model.train()
        moved = []
        for name, module in self.model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                # A layer without weights belongs to the group that its statistics are in.
                trained = f"{name}.weight" in wanted if module.affine else f"{name}.running_mean" in whole
                module.train(trained)
                moved += [f"{name}.{kind}".removeprefix(".") for kind in ("running_mean", "running_var") if trained]
        return moved

    def _draws(self, schedule: CohortSchedule) -> PhaseDraws:
        longest: list[int] = []
        if (lengths := self._lengths) is not None:
            places = schedule.planned.clamp(min=0) + self._host_starts().unsqueeze(2)
            longest = lengths[places].amax((0, 2)).tolist()
        return PhaseDraws(self.setup, self.round, self.keys, self._phases, schedule.full, schedule.steps, longest)

    def _draws_of_all(self) -> PhaseDraws:
        """Of a single step with all rows."""
        sizes, lengths = self.sizes.tolist(), self._lengths
        longest = [] if lengths is None else [int(lengths.max())]
        return PhaseDraws(self.setup, self.round, self.keys, [0] * len(sizes), sizes, 1, longest)

    @property
    def _lengths(self) -> Tensor | None:
        """Of texts that stay on the host and meet dropout, the tokens of each row of :meth:`_rows`; None of others."""
        return self._rows()[0]["lengths"] if self.setup.folds and self.setup.dropouts else None

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
        extras = Extras(loss, penalty, correction, reference)
        if loss is not None or reference is not None:
            self._needs_samples("a loss of its own")
        self._look_at(loss, penalty)
        self._check_names("a correction", correction or ())
        names = self.setup.groups.trainable(group)
        length = train_length(self.setup.config, epochs, steps, samples, batch_size)
        if self._hidden is not None:
            self._spend(Length(length, start is not None))
        schedule = self._schedule(length, start)
        self._count_steps(schedule)
        if not names or not schedule.steps:
            return
        lrs = rates_of_steps(self.lr if lr is None else lr, schedule.steps)
        rates = self.setup.rates(lrs[0], momentum, weight_decay)
        # Features are worth computing once if the phase goes over the whole data at least once.
        whole = bool((schedule.counts.sum(1) >= self.sizes).all()) and self._hidden is None
        split = self.setup.training_split(frozenset(names)) if whole else None
        with self._training(names, group):
            pool = self._pool(split, names)
            plain = extras.none and len(set(lrs)) == 1 and self.task.plain and self.task.task.softmax
            phase = Phase(names, pool, schedule, rates, lrs, extras)
            if self._hidden is not None:
                self._descend_privately(phase, self._hidden)
            elif pool.split is not None and plain and is_linear_head(pool.split, names):
                self._fit_linear_head(phase)
            else:
                self._descend(phase)

    def _descend(self, phase: Phase) -> None:
        """All steps of a phase."""
        pool, schedule, extras = phase.pool, phase.schedule, phase.extras
        draws, optimizer = self._draws(schedule), self._optimizer(phase.names, phase.rates)

        def descend(batch: Batch, reference: Tensor | None, active: Tensor | None, lr: float) -> Tensor:
            leaves = optimizer.leaves()
            loss = self._batch_losses(pool.module, pool.names, leaves, batch, extras.loss, reference)
            seen = loss.detach()
            if extras.penalty is not None:
                loss = loss + self._pulling(extras.penalty, leaves)
            optimizer.step(loss, lr, active, extras.correction)
            return seen

        descended = RecordedStep(descend, self._graphs_for(phase))
        losses: list[Tensor] = []
        for step in range(schedule.steps):
            batch = self._batch(pool, schedule, draws, step)
            reference = None if extras.reference is None else self._of_batch(extras.reference, schedule, step)
            losses.append(descended(batch, reference, schedule.active(step), phase.lrs[step]))
        self._record(losses, schedule)

    def _graphs_for(self, phase: Phase) -> StepGraphs | None:
        """Where the steps of a phase are recorded, if they can be."""
        return self._graphs if alike_steps(phase.rates, phase.lrs) else None

    def _descend_privately(self, phase: Phase, privacy: ExamplePrivacy) -> None:
        """All steps of a phase, each along the noisy mean of cut gradients (see :mod:`commonground.privacy.examples`).

        What a method adds to gradients knows nothing of examples but what earlier steps released, and neither does the
        optimizer; so they come after the noise.
        """
        schedule, extras = phase.schedule, phase.extras
        draws, optimizer = self._draws(schedule), self._optimizer(phase.names, phase.rates)
        gradients_of_examples = ExampleGradients(self.setup, privacy.clip)
        losses: list[Tensor] = []
        for step in range(schedule.steps):
            batch = self._batch(phase.pool, schedule, draws, step)
            leaves = optimizer.leaves()
            sums, loss = self._clipped_sums(gradients_of_examples, leaves, batch)
            losses.append(loss)
            found = self._with_noise(sums, schedule, step, privacy.noise * privacy.clip)
            if extras.penalty is not None:
                penalty = self._pulling(extras.penalty, leaves).sum()
                pull = gradients_of(penalty, leaves) if penalty.requires_grad else {}  # of a constant
                found = {name: value + pull[name] if pull else value for name, value in found.items()}
            given = extras.correction or {}
            found = {name: value + given[name] if name in given else value for name, value in found.items()}
            optimizer.along(found, phase.lrs[step], schedule.active(step))
        self._record(losses, schedule)

    def _pulling(self, penalty: Penalty, leaves: Tensors) -> Tensor:
        """A method's penalty, one number per client; of tensors that this phase does not train it may be a constant."""
        given = self._penalties(penalty, leaves)
        if given.requires_grad:
            self.setup.pulled.add("penalty")  # one that has, may be constant where it reaches a bound
        elif not self.setup.pulled and is_constant(given):
            floating = {name: value for name, value in self._values().items() if value.is_floating_point()}
            every = {name: value.detach().clone().requires_grad_() for name, value in floating.items()}
            check_depends(self._penalties(penalty, every))
        return given

    def batches(
        self,
        *,
        epochs: int | Tensor | None = None,
        steps: int | None = None,
        samples: int | None = None,
        batch_size: int | None = None,
        share: float = 1.0,
    ) -> Iterator[Batch]:
        """See :meth:`commonground.algorithms.Client.batches`."""
        self._needs_samples("batches")
        own = epochs if isinstance(epochs, Tensor) else None
        common = 0 if isinstance(epochs, Tensor) else epochs
        length = train_length(self.setup.config, common, steps, samples, batch_size)
        schedule = self._schedule(length, epochs=own, share=share)
        self._count_steps(schedule)
        draws, pool = self._draws(schedule), self._pool(None, ())
        for step in range(schedule.steps):
            with self._only(schedule, step):
                yield self._batch(pool, schedule, draws, step)

    def _check_names(self, what: str, names: Iterable[str]) -> None:
        """Refuse names that are none of the model's, under which nothing would happen."""
        for name in names:
            if name not in self.setup.initial:
                raise ModelError(
                    f"{what} of {self.setup.algorithm.title} is for a tensor {quoted(name)}, which the model has not"
                    f"{meant(name, self.setup.initial)}"
                )

    def _kept(self, state: Tensors) -> Iterator[tuple[str, Tensor]]:
        """What a client keeps, in the types it was declared with: all engines keep the same.

        Raises:
            ModelError: it is not declared, or of another kind or shape.
        """
        whose = f"what {self.setup.algorithm.title} keeps"
        for name, value in state.items():
            if name not in self.state:
                raise ModelError(
                    f"{whose} has a tensor {quoted(name)}, which client_state does not declare{meant(name, self.state)}"
                )
            declared = self.state[name]
            if not torch.can_cast(value.dtype, declared.dtype):
                raise ModelError(
                    f"{whose} as {quoted(name)} is {kind_of(value)}, and client_state declares {kind_of(declared)}"
                )
            try:
                yield name, value.detach().to(declared.dtype).expand_as(declared)
            except RuntimeError:
                own = self.setup.initial_personal[name].shape
                raise ModelError(
                    f"{whose} as {quoted(name)} has the shape {tuple(value.shape)}, and client_state declares "
                    f"{tuple(own)}{' for each client' if len(self.keys) > 1 else ''}"
                ) from None

    def lr_after(self, done: float) -> float:
        """See :meth:`commonground.algorithms.Client.lr_after`."""
        return self.setup.lr_after(done)

    def _means_by_class(self, features: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """[…, classes, F] mean of features […, n, F] over the samples of each class y […, n] that are ``there``."""
        classes = torch.arange(self.setup.data.classes, device=self.device)
        members = (y.unsqueeze(-1) == classes).to(self.dtype) * there.unsqueeze(-1)
        counts = members.sum(-2).unsqueeze(-1)
        return members.transpose(-1, -2) @ features / counts.clamp(min=1)

    # -- what differs between one client and a cohort -------------------------------------------------------------

    @abstractmethod
    def _look_at(self, loss: Loss | None, penalty: Penalty | None) -> None:
        """Refuse a method's loss or penalty that would not mean the same for each client."""

    @abstractmethod
    def _count_steps(self, schedule: CohortSchedule) -> None:
        """Set ``steps``."""

    @abstractmethod
    def _training(self, names: Sequence[str], group: str | Sequence[str]) -> AbstractContextManager[None]:
        """While open, the model is in training mode for these parameters."""

    def _present(self) -> list[bool]:
        """Which clients the code that runs is for: inside of ``batches``, those that have a batch."""
        return [True] * len(self.keys)

    @abstractmethod
    def _only(self, schedule: CohortSchedule, step: int) -> AbstractContextManager[None]:
        """While open, verbs leave clients alone that have no batch at this step."""

    @abstractmethod
    def _pool(self, split: ModelCut | None, names: Sequence[str]) -> Pool:
        """What batches are drawn from, with the first part of a split done if it can be."""

    @abstractmethod
    def _batch(self, pool: Pool, schedule: CohortSchedule, draws: PhaseDraws, step: int) -> Batch:
        """A step's inputs, targets and masks."""

    @abstractmethod
    def _of_batch(self, reference: Tensor, schedule: CohortSchedule, step: int) -> Tensor:
        """A step's part of a constant for each training sample."""

    @abstractmethod
    def _optimizer(self, names: Sequence[str], rates: Rates) -> SequentialOptimizer | StackedOptimizer:
        """A fresh optimizer of these tensors."""

    @abstractmethod
    def _batch_losses(
        self,
        module: nn.Module,
        names: Mapping[str, str],
        leaves: Tensors,
        batch: Batch,
        loss: Loss | None,
        reference: Tensor | None = None,
    ) -> Tensor:
        """A batch's mean loss, one number per client.

        Args:
            module: the model, or the rest of a split.
            names: names in the whole model to names inside it.
            leaves: tensors in place of the current ones, by name.
            batch: inputs and targets.
            loss: of each sample; by default the task's.
            reference: for a loss that compares with it.
        """

    @abstractmethod
    def _clipped_sums(self, examples: ExampleGradients, leaves: Tensors, batch: Batch) -> tuple[Tensors, Tensor]:
        """A batch's sum of cut gradients, and its mean loss, one number per client."""

    @abstractmethod
    def _with_noise(self, sums: Tensors, schedule: CohortSchedule, step: int, std: float) -> Tensors:
        """Sums of cut gradients as noisy means: (sum + noise of this standard deviation) / a full batch's size."""

    @abstractmethod
    def _values(self) -> Tensors:
        """The model's tensors as they are now."""

    @abstractmethod
    def _penalties(self, penalty: Penalty, leaves: Tensors) -> Tensor:
        """A method's penalty, one number per client, of these tensors and what else the clients have."""

    @abstractmethod
    def _record(self, losses: Sequence[Tensor], schedule: CohortSchedule) -> None:
        """Remember the mean loss over the last pass, from all steps' losses."""

    @abstractmethod
    def _fit_linear_head(self, phase: Phase) -> None:
        """All steps of a phase that trains one linear layer on features."""
