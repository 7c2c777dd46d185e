"""Texts from the Hugging Face hub, through the optional ``datasets`` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from commonground.data.names import sorted_names
from commonground.data.sources.instructions import instruction_data
from commonground.data.sources.table import held_out, positions
from commonground.data.sources.text_table import text_columns
from commonground.data.tables.huggingface import TESTS, hub_dataset
from commonground.data.text.samples import TextData, TextSamples
from commonground.errors import DataError
from commonground.suggest import meant

__all__ = ["PREFIX", "load_hub"]

PREFIX = "hf:"


def load_hub(
    name: str, *, download: bool = True, label: str = "label", client_column: str | None = None, seed: int = 0
) -> TextData:
    """A data set of the Hugging Face hub.

    ``hf:OWNER/NAME`` or ``hf:OWNER/NAME/CONFIGURATION``; ``hf:glue/sst2`` is short for ``hf:nyu-mll/glue/sst2``. Texts
    are found by the names of their columns, as in a table of texts; a data set with ``instruction`` and ``output``
    is read as instructions. The training part is ``train``; the test part is ``test`` where it has labels, else
    ``validation``, else a quarter of the training part held out at random.

    Args:
        name: as above.
        download: whether it may be fetched; otherwise only what the package keeps already.
        label: the label's column.
        client_column: the column that says whom a text belongs to.
        seed: keys a hold-out.

    Raises:
        ConfigError: the package is not installed.
        DataError: the data set cannot be had, or lacks the columns.
    """
    found = hub_dataset(name, download)
    splits = {split: _Part(name, split, found[split]) for split in found}
    if "train" not in splits:
        raise DataError(f"the data '{name}' have no part 'train'; their parts are: {', '.join(splits)}")
    train = splits["train"]
    language = {"instruction", "output"} <= set(train.names)
    tests = (splits[split] for split in TESTS if split in splits)
    test = next((part for part in tests if language or part.labelled(label)), None)
    if language:
        given = None if test is None else (test.rows(), range(len(test)), Path(test.origin))
        origin = Path(train.origin)
        return instruction_data(
            name, train.rows(), range(len(train)), origin, client_column=client_column, test=given, seed=seed
        )
    return _classes(name, train, test, label, client_column, seed)


class _Part:
    """One part of a data set."""

    def __init__(self, name: str, split: str, data: Any) -> None:
        self.origin = f"{name}:{split}"
        self.names: list[str] = list(data.column_names)
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def column(self, name: str) -> list[Any]:
        if name not in self.names:
            near = meant(name, self.names)
            raise DataError(f"{self.origin} has no column {name!r}{near}; its columns are: {', '.join(self.names)}")
        return list(self.data[name])

    def rows(self) -> list[dict[str, Any]]:
        columns = [self.column(name) for name in self.names]
        return [dict(zip(self.names, values, strict=True)) for values in zip(*columns, strict=True)]

    def labelled(self, label: str) -> bool:
        return label in self.names and all(value not in (-1, None) for value in self.column(label))


def _classes(name: str, train: _Part, test: _Part | None, label: str, client_column: str | None, seed: int) -> TextData:
    names = getattr(train.data.features.get(label), "names", None)  # of a ClassLabel, whose values are numbers
    parts = [train] if test is None else [train, test]
    values = np.array([str(value) for part in parts for value in part.column(label)])
    class_names = sorted_names(values) if names is None else tuple(map(str, names))
    y = positions(values, class_names) if names is None else values.astype(np.int64)
    columns = (
        {}
        if client_column is None
        else {client_column: np.array([str(value) for part in parts for value in part.column(client_column)])}
    )
    if test is None:
        groups = columns.get(client_column or "", values)
        is_test = held_out(Path(train.origin), groups, client_column is not None, seed)
    else:
        is_test = np.arange(len(values)) >= len(train)

    def samples(chosen: Any, part: _Part, first: int) -> TextSamples:
        index = np.flatnonzero(chosen)
        texts = [
            [str(cells[i - first]).strip() for i in index]
            for cells in map(part.column, text_columns(part.origin, part.names))
        ]
        return TextSamples(
            texts[0],
            texts[1] if len(texts) > 1 else None,
            y[chosen],
            {column: cells[chosen] for column, cells in columns.items()},
            part.origin,
            numbers=(index - first).tolist(),
        )

    first = 0 if test is None else len(train)
    return TextData(name, samples(~is_test, train, 0), samples(is_test, test or train, first), class_names)
