"""What training minimises: the task's loss, with weights of classes or a loss of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.errors import ConfigError, ModelError
from commonground.registration import is_ours
from commonground.tasks.base import Task

__all__ = ["Objective", "OwnLoss", "class_weights", "what_is"]

OwnLoss = Callable[[Tensor, Tensor], Tensor]
"""From a model's outputs [rows, …] and targets [rows, …] to one loss for each row [rows], each of its own row alone:
rows of several clients may come together. Both are in the units in which the model learns: targets of a task that
standardises them, as that of tables' and estimators' numbers does, are standardised
(:meth:`~commonground.tasks.Task.learnt`)."""


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss of local training. Tests keep the task's own, so that runs are compared by the same figures.

    Attributes:
        task: what is learnt.
        weights: [classes], by which a row's loss is multiplied; a batch's loss is still its mean over rows, not over
            weights.
        own: replaces the task's loss.
    """

    task: Task
    weights: Tensor | None = None
    own: OwnLoss | None = None

    @property
    def plain(self) -> bool:
        """Whether it is the task's own loss."""
        return self.weights is None and self.own is None

    @property
    def of_user(self) -> bool:
        """Whether the loss is code of somebody else than this library."""
        return self.own is not None or not is_ours(type(self.task))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """One loss for each row [rows]; see :meth:`~commonground.tasks.Task.loss`.

        Raises:
            ModelError: the loss of the user, or of a task of the user's, gives something else.
        """
        rows = self.task.loss(output, y) if self.own is None else self.own(output, self.task.learnt(output, y))
        if self.of_user and (not isinstance(rows, Tensor) or rows.shape != y.shape[:1]):
            whose = "the loss" if self.own is not None else f"the loss of the task {self.task.name!r}"
            raise ModelError(f"{whose} must give one number for each of {len(y)} rows, not {what_is(rows)}")
        return rows if self.weights is None else rows * self.weights[y]

    def check(self, output: Tensor, y: Tensor) -> None:
        """Refuse a loss from which nothing can be learnt, or of which a row's part hangs on those beside it: engines
        put rows of several clients together.

        Args:
            output, y: of at least three rows. Never is one tried alone, of which a batch, and the loss, may never be.

        Raises:
            ModelError: it is one; of a loss that draws something it is not judged whether rows hang together.
        """
        with torch.enable_grad():
            rows = self.loss(output.detach().requires_grad_().clone(), y)  # which it may change in place
        if not rows.requires_grad:
            raise ModelError(
                "the loss does not depend on the model's outputs: it is detached from them (by detach, no_grad, item, "
                "argmax or NumPy), so that nothing can be trained"
            )
        if bool(rows.isnan().any()) and bool(output.isfinite().all()):
            raise ModelError("the loss is no number (NaN) for a row of the training data, though the outputs are")
        whole, again, part = (self.loss(output[:rows], y[:rows])[:2] for rows in (3, 3, 2))
        if torch.equal(whole, again) and not torch.allclose(whole, part, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise ModelError(
                "the loss of a row changes with the rows beside it; it must be each row's own, as rows of several "
                "clients may come together"
            )

    def mean_loss(self, output: Tensor, y: Tensor) -> Tensor:
        """The mean of :meth:`loss`."""
        return self.task.mean_loss(output, y) if self.plain else self.loss(output, y).mean()


def what_is(given: object) -> str:
    """What a user's function gave, for a sentence."""
    return f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__


def class_weights(text: str, task: Task, counts: npt.NDArray[np.int64], names: Sequence[str]) -> tuple[float, ...]:
    """The weights of classes that a setting names.

    Args:
        text: ``balanced``, which is n/(k·n_c) for the n_c rows of class c among all n rows of k classes (as in
            scikit-learn), so that the mean weight of a row is 1; or numbers, separated by commas, one for each class.
        task: what the data are for.
        counts: [classes] training rows of each class, added up over all clients.
        names: of the classes.

    Raises:
        ConfigError: they do not fit, or the task has no classes.
    """
    if task.name != "classification":
        raise ConfigError(f"--class-weights are for classification, and the task is {task.name}")
    if text == "balanced":
        there = counts > 0
        return tuple(np.where(there, counts.sum() / (there.sum() * np.maximum(counts, 1)), 0.0).tolist())
    weights = tuple(float(part) for part in text.split(","))
    if len(weights) != len(names):
        raise ConfigError(f"--class-weights names {len(weights)} weights, and the data has {len(names)} classes")
    return weights
