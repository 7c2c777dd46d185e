"""What every way of combining updates has in common, and how it is named: ``median``, ``trimmed:0.2``, ``krum:1``."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from commonground.devices import wide
from commonground.errors import ConfigError
from commonground.suggest import meant

__all__ = [
    "Aggregate",
    "Tensors",
    "aggregates",
    "check_false",
    "middle",
    "parse_aggregate",
    "selected_mean",
    "squared_distances",
    "stacked",
]

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Aggregate(ABC):
    """A way to combine updates: subclass it as a frozen dataclass in a file of its own.

    Fields of the dataclass are its numbers, in the order in which they are written behind the name (``krum:1``).

    Attributes:
        name: the name in the command line.
        source: authors and year of the paper.
        weighs: whether it can weigh updates by their clients' samples; what bounds the harm of one update cannot let it
            say how much it counts.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    weighs: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, updates: Sequence[Tensors], weights: Sequence[float], center: Tensors) -> Tensors:
        """The combined update, by name.

        Args:
            updates: what the clients sent, all of the same names and shapes, in the clients' order.
            weights: of the updates in a mean; they sum to 1.
            center: what an update is a change of, by name; of a tensor it lacks, zero.
        """

    def least(self) -> int:
        """The smallest number of updates it can combine."""
        return 1

    def check(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ConfigError: says what is allowed.
        """

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{getattr(self, f.name):g}" for f in fields(self))])

    def __init_subclass__(cls) -> None:
        if not inspect.isabstract(cls) and "name" in vars(cls):
            aggregates[cls.name] = cls


aggregates: dict[str, type[Aggregate]] = {}
"""Every way by name; it enters by being defined."""


def parse_aggregate(text: str) -> Aggregate:
    """The aggregate that a text names.

    Args:
        text: a name and its numbers, separated by colons.

    Raises:
        ConfigError: there is none of this name, or its numbers are missing or out of range.

    >>> str(parse_aggregate("trimmed:0.2"))
    'trimmed:0.2'
    """
    name, *numbers = text.strip().split(":")
    if name not in aggregates:
        raise ConfigError(f"unknown aggregate '{text}'{meant(name, aggregates)}; known are {forms()}")
    cls = aggregates[name]
    if len(numbers) != len(fields(cls)):
        raise ConfigError(f"the aggregate '{text}' is not of the form {_form(cls)}")
    values: dict[str, Any] = {}
    for field, number in zip(fields(cls), numbers, strict=True):
        try:
            if "_" in number:  # which Python takes for a thousands separator
                raise ValueError
            values[field.name] = (int if field.type in ("int", int) else float)(number)
        except ValueError:
            raise ConfigError(f"the aggregate '{text}' is not of the form {_form(cls)}: '{number}' is none") from None
    made = cls(**values)
    made.check()
    return made


def forms() -> str:
    """How each is written."""
    return ", ".join(_form(cls) for cls in aggregates.values())


def _form(cls: type[Aggregate]) -> str:
    assert all(field.default is MISSING for field in fields(cls)), "an aggregate's numbers have no defaults"
    return ":".join([cls.name, *(field.name.upper() for field in fields(cls))])


def stacked(updates: Sequence[Tensors], name: str) -> Tensor:
    """One tensor of all updates [updates, …]."""
    return torch.stack([update[name] for update in updates])


def squared_distances(updates: Sequence[Tensors]) -> Tensor:
    """‖u_i − u_j‖² over all tensors [updates, updates], in double precision, where even 1e30 has a square."""
    total: Tensor | float = 0.0
    for name in updates[0]:
        flat = wide(stacked(updates, name).flatten(1))
        total = total + torch.stack([(flat - row).square().sum(1) for row in flat])
    assert isinstance(total, Tensor), "an update holds a tensor"
    return total


def selected_mean(updates: Sequence[Tensors], chosen: Tensor) -> Tensors:
    """The plain mean of some updates, by name; their numbers stay on the device."""
    return {name: stacked(updates, name).index_select(0, chosen).mean(0) for name in updates[0]}


def middle(values: Tensor) -> Tensor:
    """The median over the leading axis; of an even number of values, the mean of the two in the middle."""
    ordered = values.sort(0).values
    # Halves first: the sum of two large numbers may overflow where their mean does not.
    return ordered[(len(values) - 1) // 2] / 2 + ordered[len(values) // 2] / 2


def check_false(aggregate: Aggregate, false: int) -> None:
    """Refuse a number of false updates that is none.

    Raises:
        ConfigError: it is negative.
    """
    if false < 0:
        raise ConfigError(f"the number of false updates of '{aggregate}' must be at least 0")
