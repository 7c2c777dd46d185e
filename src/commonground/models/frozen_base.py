"""What the engines need of a model with a large frozen base, besides its outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from commonground.data.inputs import Inputs

__all__ = ["FrozenBaseModel", "base_sha256_of", "vocab_size_of"]


class FrozenBaseModel(nn.Module, ABC):
    """A frozen pretrained model with small trained parts, through which rows of many clients go together.

    A batch of rows of several clients goes through the frozen base once, while every row meets its own client's trained
    tensors (:meth:`folded`); engines fold cohorts this way in place of ``torch.func``. The hidden states below the
    first trained layer never change, so they may be computed once and kept (:meth:`keep_hidden`, :meth:`fill`). Such a
    model has its own number type and keeps the base's dropout off.

    Inputs are texts by name (see :mod:`commonground.data.inputs`): ``input_ids`` [n, L] (−1 where a row has ended),
    ``marks`` [n, L] (segments; for answers 1 on tokens to learn), ``lengths`` [n] and ``numbers`` [n], by which rows
    are known again. They stay on the host, also where the model is on a device: it plans its passes by them, and moves
    what a pass needs.

    Attributes:
        config: the base's configuration, in transformers' form (see :func:`vocab_size_of`).
        constants, groups: see :mod:`commonground.models.groups`; all tensors but the trained ones are constants.
        base_dtype: number type of the base's weights.
        base_sha256: of the base's weights, by which a run knows them again.
    """

    config: Any
    constants: frozenset[str]
    groups: dict[str, tuple[str, ...]]
    base_dtype: torch.dtype
    base_sha256: str

    @property
    @abstractmethod
    def numbers_per_token(self) -> int:
        """Numbers a training pass keeps for each token, for folding by memory."""

    @abstractmethod
    def keep_hidden(self, lengths: npt.NDArray[np.integer[Any]] | None) -> None:
        """Prepare to keep hidden states of a data set whose rows have these numbers of tokens (None: of none any more);
        forget others.
        """

    @abstractmethod
    def fill(self, inputs: Inputs) -> None:
        """Compute and keep what is not kept yet of these rows."""

    @abstractmethod
    def folded(self, inputs: Inputs, route: Tensor) -> Tensor:
        """Outputs for n rows, row i with the trained tensors at its place in the stack.

        Args:
            inputs: the rows.
            route: [n] positions on the leading axis of trained tensors that are stacked; others are common to all. On
                the host, as the rows are.
        """


def base_sha256_of(model: nn.Module) -> str | None:
    """The sha256 of a model's frozen base; None without one."""
    return model.base_sha256 if isinstance(model, FrozenBaseModel) else None


def vocab_size_of(model: nn.Module) -> int | None:
    """How many tokens a model knows, by its ``config`` as transformers' models have one; None if it does not say."""
    size: int | None = getattr(getattr(model, "config", None), "vocab_size", None)
    return size
