"""Texts from the Hugging Face hub, through the optional ``datasets`` package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from commonground.data.sources.instructions import instruction_data
from commonground.data.sources.text_table import load_text_table
from commonground.data.tables.huggingface import TESTS, hub_dataset, raw_of_dataset
from commonground.data.tables.options import TableOptions
from commonground.data.tables.schema import TableSchema
from commonground.data.text.samples import TextData
from commonground.errors import ConfigError, DataError

__all__ = ["PREFIX", "load_hub"]

PREFIX = "hf:"


def load_hub(
    name: str,
    *,
    download: bool = True,
    label: str = "label",
    client_column: str | None = None,
    seed: int = 0,
    options: TableOptions | None = None,
    like: TableSchema | None = None,
    owner: str | None = None,
) -> TextData:
    """Texts of a data set of the Hugging Face hub.

    ``hf:OWNER/NAME`` or ``hf:OWNER/NAME/CONFIGURATION``; ``hf:glue/sst2`` is short for ``hf:nyu-mll/glue/sst2``. It is
    read as a table of texts (:func:`~commonground.data.sources.text_table.load_text_table`), its parts ``train`` and
    ``test``, or ``validation`` where the test part's classes are hidden, being a column ``split``
    (:func:`~commonground.data.tables.huggingface.raw_of_dataset`); a data set with ``instruction`` and ``output`` as
    instructions.

    Args:
        name: as above.
        download: whether it may be fetched; otherwise only what the package keeps already.
        label, client_column, seed, options, like, owner: as of a table of texts.

    Raises:
        ConfigError: the package is not installed, or an option says nothing of instructions.
        DataError: the data set cannot be had, or is no such table.
    """
    found = hub_dataset(name, download)
    train = found.get("train") if isinstance(found, Mapping) else None
    if train is not None and {"instruction", "output"} <= set(train.column_names):
        if replace(options or TableOptions(), client_column=None) != TableOptions():
            raise ConfigError(
                f"the data '{name}' are instructions and answers, of which the fields instruction, input and output "
                "are read; there are no columns to drop, read or split by"
            )
        return _instructions(name, found, client_column, seed, owner)
    raw = raw_of_dataset(found, Path(name))
    texts = load_text_table(
        raw, label=label, client_column=client_column, seed=seed, options=options, like=like, owner=owner
    )
    return replace(texts, name=name)


def _instructions(
    name: str, parts: Mapping[str, Any], client_column: str | None, seed: int, owner: str | None
) -> TextData:
    train = _objects(parts["train"])
    split = next((split for split in TESTS if split in parts), None)
    test = None if split is None else _objects(parts[split])
    return instruction_data(
        name,
        train,
        range(len(train)),
        Path(f"{name}:train"),
        client_column=client_column,
        test=None if test is None else (test, range(len(test)), Path(f"{name}:{split}")),
        seed=seed,
        owner=owner,
    )


def _objects(part: Any) -> list[dict[str, Any]]:
    """The rows of a part of a data set."""
    names = list(part.column_names)
    columns = [list(part[name]) for name in names]
    if not columns or not columns[0]:
        raise DataError("a part of the data set has no rows")
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
