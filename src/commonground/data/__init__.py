"""Data of many clients: sources (where samples come from), partitions (who gets which), the federated data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commonground.data.arrays import FeatureNoise, Preprocess, Split
from commonground.data.dealing import deal
from commonground.data.feature_noise import add_feature_noise
from commonground.data.feature_partition import Features
from commonground.data.federated import FederatedDataset
from commonground.data.from_code import data_from_code
from commonground.data.limits import limit_samples
from commonground.data.partition_texts import parse_partition
from commonground.data.partitions import IID, Column, Dirichlet, Labels, LogNormal, Partition, Shards
from commonground.data.source import Origin, Source
from commonground.data.sources import (
    SourceInfo,
    available_sources,
    data_directory,
    kind_of,
    load_source,
)
from commonground.data.tables.load import LABEL, load_table
from commonground.data.tables.objects import is_table_object, table_of
from commonground.data.tables.options import TableOptions, table_options
from commonground.data.tables.raw import RawTable
from commonground.data.tables.schema import TableSchema
from commonground.data.text import extract_answer, load_tokenizer, tokenize
from commonground.data.validation import held_rows, hold_out
from commonground.errors import ConfigError
from commonground.name_lists import listed
from commonground.tasks import Task
from commonground.user_code import is_code

__all__ = [
    "IID",
    "Column",
    "Dirichlet",
    "FeatureNoise",
    "Features",
    "FederatedDataset",
    "Labels",
    "LogNormal",
    "Origin",
    "Partition",
    "Preprocess",
    "Shards",
    "Source",
    "SourceInfo",
    "Split",
    "TableOptions",
    "TableSchema",
    "Task",
    "add_feature_noise",
    "available_sources",
    "data_directory",
    "deal",
    "extract_answer",
    "held_rows",
    "hold_out",
    "kind_of",
    "limit_samples",
    "load_data",
    "load_source",
    "load_tokenizer",
    "parse_partition",
    "tokenize",
]


def load_data(
    name: str | os.PathLike[str] | Any,
    clients: int | None = None,
    *,
    classes_per_client: int | None = None,
    partition: str | Partition | None = None,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    label: str | None = None,
    tokenizer: Any = None,
    max_length: int = 128,
    vocab_size: int | None = None,
    task: str | None = None,
    schema: TableSchema | str | os.PathLike[str] | None = None,
    **table: Any,
) -> FederatedDataset:
    """A source dealt to clients, in one call.

    Args:
        name: a name of :func:`available_sources`; the path of a table (.csv, .tsv, .jsonl, .parquet, .arrow, .feather,
            a folder of such files, or one that ``datasets`` saved), of a folder of pictures (CLIENT/CLASS/*.png), of
            LEAF's files or of instructions (.json, .jsonl); for data of the Hugging Face hub ``hf:OWNER/NAME``; or
            ``file.py:function`` for a function of yours. It is called with those of the arguments below that it has
            parameters for, and returns a :class:`FederatedDataset`, a :class:`Source` (which is then dealt to clients)
            or a list of ``(x_train, y_train, x_test, y_test)``, one per client. Also a table as an object: a
            ``DataFrame`` of pandas or polars, a pyarrow ``Table``, a ``datasets.Dataset`` or ``DatasetDict``.
        clients: how many; may be left out with a ``column:NAME`` partition.
        classes_per_client: S; without a partition it means :class:`Shards`.
        partition: a partition or its text (:func:`parse_partition`); without it and S, what is natural for
            the source (mostly :class:`IID`).
        seed: keys every draw.
        data_dir: folder of the data files; see :func:`data_directory` for the default.
        download: whether missing files may be downloaded.
        label: a table's label column, or target columns, separated by commas or as a list; ``target`` is the same. By
            default ``label``, or the ``schema``'s.
        tokenizer: for texts: a transformers tokenizer, a folder with one, or ``hf:NAME_OR_FOLDER``, the model's own.
        max_length: most tokens of a text.
        vocab_size: of the model that shall read the tokens, if known: a tokenizer that does not fit is refused.
        task: what a table is for: ``classification`` (the default), ``regression`` or ``multilabel``.
        schema: of a run (``run.trained.schema``, or the path of its ``schema.json``), whose columns and encoders are
            taken for a table.
        **table: of a table, what :class:`~commonground.data.tables.options.TableOptions` lists: ``client_column``,
            ``drop``, ``kinds``, ``separator``, ….

    Raises:
        ConfigError: a setting is unknown or out of range.
        DataError: files are missing or damaged, or the partition is impossible for them.

    >>> load_data("digits", clients=20, classes_per_client=2)
    <FederatedDataset digits: 20 clients, 1,258 training samples (61 to 64 each), 539 test samples (26 to 28 each), \
10 classes (2 per client)>
    """
    if label is not None or "target" in table:
        label = _columns_text(table.pop("target", label))
    if isinstance(schema, str | os.PathLike):
        schema = TableSchema.read(Path(schema))
    options = table_options(table)
    asked = partition = _by_column(partition, classes_per_client, options.client_column)
    if partition is None:
        usual = kind_of(name).partition if isinstance(name, str | os.PathLike) else "iid"
        partition = usual if classes_per_client is None else "shards"
    if isinstance(partition, type):
        raise ConfigError(f"a partition is an object, such as {partition.__name__}(…), and not its class")
    if not isinstance(partition, str) and classes_per_client is not None:
        raise ConfigError(
            f"classes_per_client={classes_per_client} is for a partition by name; {partition} says it itself"
        )
    chosen = parse_partition(partition, classes_per_client) if isinstance(partition, str) else partition
    column = chosen.name if isinstance(chosen, Column) else None
    if not isinstance(name, str | os.PathLike):
        raw, options = _table_of(name, tokenizer), replace(options, client_column=column)
        source = load_table(raw, label=label, seed=seed, task=task, options=options, schema=schema)
        return deal(source, chosen, clients, seed)
    if is_code(os.fspath(name)):
        if options != TableOptions():
            says = "says" if len(table) == 1 else "say"
            raise ConfigError(f"'{name}' is a function; {', '.join(table)} {says} how a file or folder is read")
        given = {
            "clients": clients,
            "classes_per_client": classes_per_client,
            "partition": asked,
            "seed": seed,
            "data_dir": data_directory(data_dir),
            "download": download,
            "label": label or LABEL,
            "task": task,
            "tokenizer": tokenizer,
            "max_length": max_length,
            "vocab_size": vocab_size,
        }
        found, taken = data_from_code(os.fspath(name), given)
        if label is not None and "label" not in taken:
            raise ConfigError(
                f"label={label!r} names a column, and '{name}' is a function; it may take label as a parameter"
            )
        if task not in (None, found.task.name) and "task" not in taken:
            raise ConfigError(
                f"task={task!r} says what a table is for, and '{name}' returns samples for {found.task.name}; its "
                f"function may take task as a parameter, or give it to {type(found).__name__}"
            )
        if isinstance(found, Source):
            return deal(found, chosen, clients, seed)
        for key, has in (("clients", found.clients), ("classes_per_client", None), ("partition", None)):
            if key not in taken and given[key] not in (None, has):
                raise ConfigError(
                    f"{key}={given[key]!r} splits samples, and '{name}' returns a data set that is split already; its "
                    f"function may take {key} as a parameter"
                )
        return found
    source = load_source(
        name,
        data_dir,
        download=download,
        seed=seed,
        label=label,
        client_column=column,
        tokenizer=tokenizer,
        max_length=max_length,
        vocab_size=vocab_size,
        task=task,
        options=options,
        schema=schema,
    )
    return deal(source, chosen, clients, seed)


def _columns_text(label: Any) -> str:
    """Target columns as one text: their names with commas between them."""
    if isinstance(label, str) and label:
        return label
    several = isinstance(label, Sequence) and not isinstance(label, str)
    names = list(label) if several else [label]
    if not names or label == "":
        raise ConfigError("target names no column")
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"target names a column, or several columns, and {name!r} is no name (names are text: '1', not 1)"
            )
    return listed(names)


def _table_of(given: Any, tokenizer: Any) -> RawTable:
    """A table that was given as an object.

    Raises:
        ConfigError: it is none, or its texts shall be read.
        DataError: it has no columns that a table has.
    """
    if tokenizer is not None and is_table_object(given):
        raise ConfigError("a tokenizer reads texts of files, not of objects; save them first (to_csv, save_to_disk)")
    return table_of(given)


def _by_column(
    partition: str | Partition | None, classes_per_client: int | None, client_column: str | None
) -> str | Partition | None:
    """The partition, by a table's client column where one is named.

    Raises:
        ConfigError: something else is asked for as well.
    """
    if client_column is None:
        return partition
    own = Column(client_column)
    if classes_per_client is not None or (partition is not None and str(partition) != str(own)):
        other = f"classes_per_client={classes_per_client}" if partition is None else f"partition {partition}"
        raise ConfigError(f"client_column={client_column!r} and {other} both say whose the rows are; give one of them")
    return own
