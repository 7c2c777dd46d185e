"""How stored samples look, and how they become what a model is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy.typing as npt
import torch
from torch import Tensor

from commonground.data.arrays import AS_STORED, Array, Preprocess
from commonground.data.inputs import Inputs
from commonground.errors import DataError

__all__ = ["Given", "InputFormat"]

Given = npt.ArrayLike | Mapping[str, npt.ArrayLike]
"""Raw samples as a user hands them over: one array, or several by name."""


@dataclass(frozen=True)
class InputFormat(ABC):
    """A kind of stored samples. A further kind is a subclass in this folder, entered in ``FORMATS``.

    Attributes:
        kind: the name in files.
        called: what the samples are, for people.
        least_axes: of an array of such samples.
        numbered: whether every row holds its own number in the data set.
        lengths_differ: whether samples are sequences whose lengths differ.
        usual_optimizer: by which usual models of such samples are trained.
        sample_shape: of one stored sample; images are (height, width, channels).
        preprocess: of numbers.
    """

    kind: ClassVar[str]
    called: ClassVar[str]
    least_axes: ClassVar[int] = 2
    numbered: ClassVar[bool] = False
    lengths_differ: ClassVar[bool] = False
    usual_optimizer: ClassVar[Literal["sgd", "adam", "adamw"]] = "sgd"

    sample_shape: tuple[int, ...]
    preprocess: Preprocess = AS_STORED

    # -- the stored array -----------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def recognises(cls, x: Array) -> bool:
        """Whether an array's number type and axes are those of such samples."""

    @classmethod
    def of(cls, x: Array, preprocess: Preprocess) -> InputFormat:
        """The format of the samples in an array."""
        return cls(tuple(x.shape[1:]), preprocess)

    @classmethod
    def read(cls, split: Mapping[str, Any], preprocess: Preprocess) -> InputFormat:
        """The format that ``split.json`` describes (see :meth:`about`)."""
        return cls(tuple(split["sample_shape"]), preprocess)

    def about(self) -> dict[str, Any]:
        """What ``split.json`` says of the samples."""
        return {"inputs": self.kind}

    def describe(self) -> str:
        """What people are told of the samples' size, if anything."""
        return ""

    def vocabulary(self, *samples: Array) -> int:
        """The largest token number plus one; 0 unless the samples are tokens."""
        return 0

    def usual_lr(self, optimizer: str, small: bool) -> float:
        """A learning rate at which usual models of such samples learn.

        Args:
            optimizer: ``sgd``, ``adam`` or ``adamw``.
            small: whether samples are rows of numbers or tiny images.
        """
        if optimizer == "sgd":
            return 0.05 if small else 0.01
        return 0.01 if small else 0.001

    # -- checks ---------------------------------------------------------------------------------------------------

    def check(self, name: str, x_train: Array, x_test: Array) -> None:
        """Refuse rows in another layout.

        Args:
            name: of the data set, for messages.
            x_train, x_test: its samples.

        Raises:
            DataError: names the first wrong row.
        """

    def check_noise(self, name: str) -> None:
        """Refuse feature noise for samples that nothing can be subtracted from.

        Raises:
            DataError: says what the samples are.
        """
        raise DataError(f"feature noise needs samples of numbers, and {name!r} holds {self.called}")

    @classmethod
    def number_through(cls, x_train: Array, x_test: Array) -> None:
        """Number the rows of a data set anew, in place, where rows have numbers."""

    @abstractmethod
    def like(self, given: Given, where: str) -> Array:
        """New samples in the stored form of the training data.

        Args:
            given: raw samples.
            where: the run, for messages.

        Raises:
            DataError: their names, shape or kind differ from the training data's.
        """

    def check_like(self, other: InputFormat, name: str, where: str) -> None:
        """Refuse a data set whose samples are no inputs for a model trained on these.

        Args:
            other: the data set's format.
            name: of the data set, for messages.
            where: the run, for messages.

        Raises:
            DataError: says how they differ.
        """
        if other.kind != self.kind:
            raise DataError(f"{where} was trained on {self.called}, and {name} holds {other.called}")
        if other.sample_shape != self.sample_shape:
            raise DataError(
                f"the new clients' samples have shape {other.sample_shape}, but the run was trained on "
                f"{self.sample_shape}"
            )

    # -- the model's inputs ---------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """One sample's shape as the model sees it; images as (channels, height, width)."""
        return self.sample_shape

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What :meth:`tensors` calls the stored parts of samples."""

    def example(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Two made-up samples in the stored form, a tensor for each of :attr:`names`, to trace a model with.

        Args:
            dtype: of numbers; whole ones among named arrays are int64.
        """
        return tuple(torch.zeros(2, *self.sample_shape, dtype=dtype, device="cpu") for _ in self.names)

    @abstractmethod
    def tensors(self, stored: Array) -> Inputs:
        """Stored samples as tensors that share their memory, by name."""

    @abstractmethod
    def make(self, stored: Inputs, dtype: torch.dtype, noise: Tensor | None = None) -> Inputs:
        """Inputs in storage order (images channels last).

        Args:
            stored: rows of :meth:`tensors`; not changed.
            dtype: the model's number type.
            noise: [n or 1, …], subtracted after scaling (:class:`~commonground.data.FeatureNoise`, strength included).
        """

    def arrange(self, inputs: Inputs) -> Inputs:
        """Inputs in storage order as the model takes them: images as (channels, height, width), as a view."""
        return inputs

    def black(self, dtype: torch.dtype) -> Tensor:
        """What a stored zero is as a model input: [channels] or a scalar."""
        return torch.zeros((), dtype=dtype, device="cpu")
