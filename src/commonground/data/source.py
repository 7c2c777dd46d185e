"""A source's samples before they are dealt to clients, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from commonground.data.arrays import Array, Marks, Preprocess, Related
from commonground.data.checks import check_targets
from commonground.data.tables.schema import TableSchema
from commonground.tasks import CLASSIFICATION, Task

__all__ = ["UNKNOWN", "Origin", "Source"]


@dataclass(frozen=True, eq=False)
class Origin:
    """Where samples come from, as far as their source knows.

    Attributes:
        schema: of a table, what its columns are and how they became samples.
        read: of texts or pictures, how they were read and split.
        test_names: what test samples are called, where they have names [N]: a table's rows by their number from 0,
            pictures by their files.
        related: of a table, what its training rows have to do with each other, if that decides which are held out.
        relearn: of a table, reads it anew with encoders and scales that know nothing of some training rows, which are
            marked [training rows].
    """

    schema: TableSchema | None = None
    read: Mapping[str, Any] = field(default_factory=dict)
    test_names: Array | None = field(default=None, repr=False)
    related: Related | None = field(default=None, repr=False)
    relearn: Callable[[Marks], Source] | None = field(default=None, repr=False)

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """How the samples were read and split, for people and a run's summary; nothing where nobody said."""
        return self.read if self.schema is None else self.schema.summary()


UNKNOWN = Origin()


@dataclass(frozen=True, eq=False)
class Source:
    """Samples before they are dealt to clients.

    Attributes:
        name: of the data.
        x_train, x_test: [N, …] uint8 or float32; images are [N, height, width, channels], texts int32 tokens.
        y_train, y_test: targets in the task's stored form; int64 [N], 0 … classes - 1, for classes.
        classes: number of classes (outputs, targets).
        class_names: one per class.
        preprocess: how stored samples become model inputs.
        train_columns, test_columns: further columns by name, one value per sample (for example who a sample is from).
        task: what is learnt from them.
        origin: what they were read from, and how.

    Raises:
        DataError: samples and targets differ in number, or a target is out of range.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: int
    class_names: tuple[str, ...]
    preprocess: Preprocess = field(default_factory=Preprocess)
    train_columns: Mapping[str, Array] = field(default_factory=dict)
    test_columns: Mapping[str, Array] = field(default_factory=dict)
    task: Task = CLASSIFICATION
    origin: Origin = UNKNOWN

    def __post_init__(self) -> None:
        for split, x, y in (("training", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            check_targets(self.name, split, x, y, self.classes, self.task)
