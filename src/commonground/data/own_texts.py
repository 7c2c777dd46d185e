"""The texts of one client of a network run, read with the tokenizer of the model that the run adapts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from commonground.data.federated import FederatedDataset
from commonground.data.own_table import TEST_SEED
from commonground.data.sources import load_source
from commonground.data.tables.options import TableOptions

__all__ = ["text_data"]


def text_data(
    path: Path,
    owner: str,
    tokenizer: str,
    *,
    max_length: int = 128,
    label: str | None = None,
    task: str | None = None,
    options: TableOptions | None = None,
) -> FederatedDataset:
    """All texts of a table, or instructions of a file, as one client's data.

    Test rows are, unless the options or a column say otherwise, those that a run with seed 0 on the texts of many
    clients would hold out of this one's.

    Args:
        path: a table of texts (:func:`~commonground.data.sources.load_text_table`), or instructions and answers
            (:func:`~commonground.data.sources.load_instructions`).
        owner: the client's name.
        tokenizer: ``hf:NAME_OR_FOLDER`` of the model.
        max_length: most tokens of a text.
        label: a table's label column; by default ``label``.
        task: checked, if it is given; texts are for classification, instructions for answers.
        options: how a table is read.

    Raises:
        ConfigError, DataError: as :func:`~commonground.data.sources.load_source`.
    """
    read = load_source(
        path,
        seed=TEST_SEED,
        label=label,
        tokenizer=tokenizer,
        max_length=max_length,
        task=task,
        options=options,
        owner=owner,
    )
    return FederatedDataset(
        name="texts",
        x_train=read.x_train,
        y_train=read.y_train,
        x_test=read.x_test,
        y_test=read.y_test,
        classes=read.classes,
        class_names=read.class_names,
        train_index=np.arange(len(read.x_train)),
        train_offsets=np.array([0, len(read.x_train)]),
        test_index=np.arange(len(read.x_test)),
        test_offsets=np.array([0, len(read.x_test)]),
        task=read.task,
        origin=read.origin,
        one_of_many=True,
        counted_classes=True,
    )
