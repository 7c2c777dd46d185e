"""What every source of samples gives, and where its files are looked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from commonground.data.arrays import Array, Preprocess, Related
from commonground.data.checks import check_targets
from commonground.data.tables.schema import TableSchema
from commonground.tasks import CLASSIFICATION, Task

__all__ = ["Source", "data_directory"]


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
        test_names: what test samples are called, where they have names [N]: a table's rows by their number from 0,
            pictures by their files.
        task: what is learnt from them.
        schema: of a table, what its columns are and how they became samples.
        about: of a table of texts or a folder of pictures, how it was read and split.
        related: of a table, what its training rows have to do with each other.
        relearn: of a table, reads it anew with encoders and scales that know nothing of some training rows, which are
            marked [training rows].

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
    test_names: Array | None = field(default=None, repr=False)
    task: Task = CLASSIFICATION
    schema: TableSchema | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    related: Related | None = field(default=None, repr=False)
    relearn: Callable[[npt.NDArray[np.bool_]], Source] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for split, x, y in (("training", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            check_targets(self.name, split, x, y, self.classes, self.task)


def data_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder data files are read from and downloaded to.

    Args:
        given: the user's own choice; without it the environment variable ``COMMONGROUND_DATA``, without that the
            user's cache folder.
    """
    return Path(
        given or os.environ.get("COMMONGROUND_DATA") or platformdirs.user_cache_dir("commonground")
    ).expanduser()
