"""Texts with their labels, before a tokenizer turns them into samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commonground.data.arrays import Array, Indices
from commonground.data.source import UNKNOWN, Origin
from commonground.errors import DataError
from commonground.tasks import CLASSIFICATION, Task

__all__ = ["TextData", "TextSamples"]


@dataclass(frozen=True, eq=False)
class TextSamples:
    """Texts, or pairs of texts, and their labels.

    Attributes:
        first: N texts; the prompts, for a language model.
        second: the second text of each pair, or the answers; None for single texts.
        labels: int64 [N].
        columns: further columns by name, one value per text (for example who it is from).
        origin: where they come from, usually a file, for messages.
        unit: what ``numbers`` count: line, row, object.
        numbers: one per text, where it stands in its origin; by default 0 … N - 1.

    Raises:
        DataError: columns of different lengths, a text that is empty or no text, or a negative label (the place named).
    """

    first: Sequence[str]
    second: Sequence[str] | None
    labels: Indices
    columns: Mapping[str, Array] = field(default_factory=dict)
    origin: str = "the texts"
    unit: str = "row"
    numbers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        others = {"labels": self.labels, "second texts": self.second, **self.columns}
        for what, values in others.items():
            if values is not None and len(values) != len(self.first):
                raise DataError(f"{self.origin}: there are {len(self.first)} texts but {len(values)} {what}")
        for name, texts in (("text", self.first), ("second text", self.second or ())):
            for row, text in enumerate(texts):
                if not isinstance(text, str):
                    raise DataError(f"{self.where(row)}: the {name} is {type(text).__name__}, not text")
                if not text.strip():
                    raise DataError(f"{self.where(row)}: the {name} is empty")
        for row in np.flatnonzero(self.labels < 0)[:1]:
            raise DataError(f"{self.where(row)}: the label is {self.labels[row]}; labels are 0 or more")

    def __len__(self) -> int:
        return len(self.first)

    def where(self, row: int) -> str:
        """Where a text stands, for messages."""
        return f"{self.origin}, {self.unit} {row if self.numbers is None else self.numbers[row]}"


@dataclass(frozen=True, eq=False)
class TextData:
    """Training and test texts of one data set.

    Attributes:
        name: of the data.
        train, test: the texts.
        class_names: one per class.
        task: whether the label or the second text is what is learnt.
        origin: what they were read from, and how.

    Raises:
        DataError: a part is empty, a label is out of range, or one part has pairs and the other has not.
    """

    name: str
    train: TextSamples
    test: TextSamples
    class_names: tuple[str, ...]
    task: Task = CLASSIFICATION
    origin: Origin = UNKNOWN

    def __post_init__(self) -> None:
        for part, samples in (("training", self.train), ("test", self.test)):
            if not len(samples):
                raise DataError(f"{self.name!r} has no {part} texts; at least 1 is needed")
            for row in np.flatnonzero(samples.labels >= len(self.class_names))[:1]:
                raise DataError(
                    f"{samples.where(row)}: the label is {samples.labels[row]}; with {len(self.class_names)} classes "
                    f"it must be 0 to {len(self.class_names) - 1}"
                )
        if (self.train.second is None) != (self.test.second is None):
            raise DataError(f"{self.name!r} has pairs of texts in one of its two parts and single texts in the other")
