"""What a task is: how a model's output is compared with what was to be learnt."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.errors import ConfigError, DataError, ModelError
from commonground.registration import check_name
from commonground.single_precision import too_large
from commonground.suggest import meant
from commonground.tasks.bounds import Bounds, Figures
from commonground.tasks.fine import FineFigures

__all__ = ["Array", "Bounds", "Figures", "Task", "make_task", "tasks"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Task(ABC):
    """What a data set's targets are and how well a model's outputs meet them.

    A data set holds its task. A further task is one file in this folder: a subclass with a ``name``.

    Attributes:
        name: the name in the command line and in files.
        metric: the headline metric, by which models are compared.
        higher_is_better: whether more of it is better.
        percent: whether it is a share, written in percent.
        counted: what the outputs are, for people (``classes``, ``targets``).
        divides: whether a sample is of some of the outputs alone (its class), so that it matters who holds which.
        generative: whether a model writes tokens after a prompt, so that its outputs are one for each of these.
        softmax: whether the loss is the cross-entropy of a softmax over all outputs, whose gradient the engines know.
        highest_default_lr: the learning rate, where none is given, is at most this.
    """

    name: ClassVar[str]
    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    percent: ClassVar[bool] = True
    counted: ClassVar[str] = "classes"
    divides: ClassVar[bool] = True
    generative: ClassVar[bool] = False
    softmax: ClassVar[bool] = False
    highest_default_lr: ClassVar[float] = math.inf

    @property
    def plain(self) -> tuple[str, ...]:
        """Names of :meth:`metrics`."""
        return (self.metric,)

    @property
    def worst(self) -> str:
        """The percentile over clients beyond which the worst tenth of them lies: ``p10`` or ``p90``."""
        return "p10" if self.higher_is_better else "p90"

    @property
    def in_double(self) -> bool:
        """Whether targets are so large beside what they differ by that single precision would round it away."""
        return False

    # -- targets ------------------------------------------------------------------------------------------------

    @abstractmethod
    def targets(self, values: Array, field: str) -> Array:
        """Targets of a data set in their stored form, one row (or number) per sample.

        Args:
            values: as given.
            field: what they are, for messages.

        Raises:
            DataError: they are of another kind.
        """

    @abstractmethod
    def outputs(self, targets: Sequence[Array], name: str) -> int:
        """How many outputs a model needs for these targets, if nobody says.

        Args:
            targets: of training and test samples, in their stored form.
            name: of the data set, for messages.
        """

    @abstractmethod
    def check_targets(self, name: str, split: str, targets: Array, outputs: int) -> None:
        """Refuse targets that are out of range, not finite or of the wrong width.

        Raises:
            DataError: names the first wrong one.
        """

    def neutral_targets(self, rows: int, outputs: int) -> Array:
        """Targets in their stored form that say nothing, for rows whose own are not here: [rows, …]."""
        return np.zeros((rows, outputs), dtype=np.float32)

    def check_inputs(self, name: str, kind: str, samples: Array) -> None:
        """Refuse samples of a kind that this task is not for.

        Args:
            name: of the data set, for messages.
            kind: what the samples are: ``numbers``, ``tokens``, ``named``.
            samples: the training samples.

        Raises:
            DataError: says which are needed.
        """

    def describe(self, outputs: int, held: str) -> str:
        """What people are told of a data set's targets, if anything.

        Args:
            outputs: how many there are.
            held: how many of them each client holds.
        """
        return f"{outputs} {self.counted} ({held} per client)"

    @abstractmethod
    def members(self, targets: Array, outputs: int) -> npt.NDArray[np.bool_]:
        """Which outputs each sample says something about, [N, outputs]: its class, its labels, all its targets."""

    def label_of(self, targets: Array) -> npt.NDArray[np.int64] | None:
        """One class for each sample [N], for partitions by class; None where samples have no single class."""
        return None

    def as_tensor(self, targets: Array, dtype: torch.dtype) -> Tensor:
        """Targets as the loss takes them.

        Args:
            targets: some rows of the stored form.
            dtype: the model's number type.
        """
        return torch.from_numpy(targets)

    def target_reader(self, x_train: Array, x_test: Array, dtype: torch.dtype) -> Callable[[Array, Array], Tensor]:
        """How stored samples and their targets become what the loss takes.

        Args:
            x_train, x_test: all samples of a data set.
            dtype: the model's number type.

        Returns:
            From some rows of the samples and of their targets to a tensor with a row each.
        """
        return lambda samples, targets: self.as_tensor(targets, dtype)

    # -- outputs ------------------------------------------------------------------------------------------------

    def check(self, output: Tensor, outputs: int) -> None:
        """Refuse a model whose outputs do not fit.

        Args:
            output: of a few samples.
            outputs: how many there must be.

        Raises:
            ModelError: says what was given and what is needed.
        """
        if output.ndim != 2 or output.shape[1] != outputs:
            raise ModelError(
                f"the model gives outputs of shape {tuple(output.shape[1:])}, but the data has {outputs} {self.counted}"
            )

    @abstractmethod
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """One loss for each sample [rows].

        Args:
            output: [rows, …], what the model returns.
            y: targets of the rows.
        """

    def learnt(self, output: Tensor, y: Tensor) -> Tensor:
        """Targets as the model's outputs are to be, which is what a loss of the user's is given."""
        return y

    def mean_loss(self, output: Tensor, y: Tensor) -> Tensor:
        """The mean of :meth:`loss`."""
        return self.loss(output, y).mean()

    @abstractmethod
    def scores(self, output: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Figures of each sample, by name: [rows] or [rows, …]; :meth:`metrics` follow from their means."""

    def score_bounds(self, outputs: int) -> dict[str, Bounds]:
        """What :meth:`scores` can be, by name, so that a server need not believe every figure that it is told. Empty if
        the task does not say, and then any finite numbers are taken.

        Args:
            outputs: of the model.
        """
        return {}

    def metrics(self, means: Mapping[str, npt.NDArray[np.float64]]) -> Figures:
        """Metrics from means of :meth:`scores` over samples; NaN where one is not defined.

        Args:
            means: by name, [C, …]: over each of C sets of samples.

        Returns:
            By name, [C].
        """
        return dict(means)

    @property
    def fine(self) -> FineFigures | None:
        """Further figures, of a run's last test and of ``predict``."""
        return None

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of all figures that a run has, as far as the task knows them."""
        return (*self.plain, *(() if self.fine is None else self.fine.names))

    @abstractmethod
    def interpret(self, output: Tensor) -> Tensor:
        """What outputs say, as :meth:`columns` names it: [rows, columns], in the outputs' number type."""

    def predict(self, output: Tensor) -> npt.NDArray[np.float64]:
        """:meth:`interpret` in double precision, on the host."""
        said: npt.NDArray[np.float64] = self.interpret(output.double()).cpu().numpy()
        return said

    def columns(self, names: Sequence[str]) -> list[str]:
        """What the columns of a prediction are called, given the outputs' names."""
        return [f"probability of {name}" for name in names]

    def choose(self, predicted: npt.NDArray[np.float64], names: Sequence[str]) -> list[str]:
        """The answer to each sample in words, from :meth:`predict`."""
        return [names[row.argmax()] for row in predicted]

    def table(self, predicted: npt.NDArray[np.float64], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
        """A prediction as it is written to a file, from :meth:`predict`: the columns' names, and a row per sample."""
        chosen = self.choose(predicted, names)
        rows = [[answer, *(f"{value:.6f}" for value in row)] for answer, row in zip(chosen, predicted, strict=True)]
        return [self.counted, *self.columns(names)], rows

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            check_name("task", cls, tasks.get(cls.name))
            tasks[cls.name] = cls


tasks: dict[str, type[Task]] = {}
"""Every task by name; a subclass enters by being defined."""


def make_task(task: str | Task) -> Task:
    """A task by name, or the task itself.

    Raises:
        ConfigError: there is none of this name.
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, type) and issubclass(task, Task):
        raise ConfigError(f"a task is an object, such as {task.__name__}(), and not its class")
    if not isinstance(task, str):
        raise ConfigError(f"a task is a name or an object of commonground.Task, not {type(task).__name__}")
    if task not in tasks:
        raise ConfigError(f"unknown task {task!r}{meant(task, tasks)}; known are {', '.join(tasks)}")
    return tasks[task]()


def real_targets(values: Array, field: str) -> Array:
    """Numbers as float32 [N, k] (float64 stays, and whole numbers that float32 does not hold become it); one number per
    sample becomes a column.

    Raises:
        DataError: they are no numbers.
    """
    values = np.asarray(values)
    number = np.issubdtype(values.dtype, np.number) or values.dtype == np.bool_
    if values.ndim not in (1, 2) or not number or np.iscomplexobj(values):
        raise DataError(f"{field} is {values.dtype} of shape {values.shape}; numbers [N] or [N, targets] are needed")
    long = values.dtype.kind in "iu" and values.size > 0 and too_large(max(int(values.max()), -int(values.min())))
    kept = values if values.dtype in (np.float32, np.float64) else values.astype(np.float64 if long else np.float32)
    return np.ascontiguousarray(kept.reshape(len(kept), -1))


def check_width(name: str, split: str, targets: Array, outputs: int, counted: str) -> None:
    """Refuse rows of another width, and rows that are not finite.

    Raises:
        DataError: names the first wrong one.
    """
    if targets.ndim != 2 or targets.shape[1] != outputs:
        raise DataError(f"{name!r} has {targets.shape[-1]} {counted} in its {split} samples, and {outputs} in all")
    for row in np.flatnonzero(~np.isfinite(targets).all(axis=1))[:1]:
        raise DataError(f"a target of {split} sample {row} of {name!r} is not a finite number")
