"""Where samples come from: every source by name, any table or instruction file by its path, the Hugging Face hub."""

from __future__ import annotations

import os
from typing import Any

from commonground.data.directory import data_directory
from commonground.data.source import Source
from commonground.data.sources.instructions import load_instructions
from commonground.data.sources.kinds import ReadRequest, kind_of
from commonground.data.sources.named import SourceInfo, available_sources
from commonground.data.sources.text_table import load_text_table
from commonground.data.sources.texts import tokenised
from commonground.data.tables.load import load_table
from commonground.data.tables.options import TableOptions
from commonground.data.tables.schema import TableSchema
from commonground.errors import ConfigError
from commonground.suggest import meant

__all__ = [
    "Source",
    "SourceInfo",
    "available_sources",
    "data_directory",
    "kind_of",
    "load_instructions",
    "load_source",
    "load_table",
    "load_text_table",
    "tokenised",
]


def load_source(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    seed: int = 0,
    label: str | None = None,
    client_column: str | None = None,
    tokenizer: Any = None,
    max_length: int = 128,
    vocab_size: int | None = None,
    task: str | None = None,
    options: TableOptions | None = None,
    schema: TableSchema | None = None,
    owner: str | None = None,
) -> Source:
    """Read a source.

    Args:
        name: a name of :func:`available_sources`; the path of a table (:func:`load_table`; with a tokenizer, of texts:
            :func:`load_text_table`), of a folder of pictures (:func:`~commonground.data.sources.images.load_images`),
            in LEAF's form (:func:`~commonground.data.sources.leaf.load_leaf`) or of instructions (.json, .jsonl:
            :func:`load_instructions`); or ``hf:OWNER/NAME`` (with a tokenizer texts,
            :func:`~commonground.data.sources.hub.load_hub`, else a table).
        data_dir: folder of the data files; see :func:`data_directory` for the default.
        download: whether missing files may be downloaded.
        seed: keys the hold-out of a table; the other sources have a fixed test set.
        label: a table's label column; by default ``label``, or the ``schema``'s.
        client_column: a table's client column.
        tokenizer: for texts: a transformers tokenizer, a folder with one, or ``hf:NAME_OR_FOLDER``.
        max_length: most tokens of a text.
        vocab_size: of the model that shall read the tokens, if known.
        task: what a table is for, by name; by default classification (see :func:`load_table`).
        options: how a table is read.
        schema: of a run whose columns and encoders are taken for a table; for texts, how it is split.
        owner: whose all rows of a table or a file of instructions are, if they are one client's: the same are held out
            as of its rows among many's.

    Raises:
        ConfigError: a task for data that have one of their own, texts without a tokenizer, a tokenizer without texts,
            or one that does not fit.
        DataError: the name is unknown, or its files are missing or damaged.
    """
    asked = ReadRequest(data_directory(data_dir), download, seed, label, client_column, task, options, schema, owner)
    kind = kind_of(name).as_read(tokenizer, asked)
    kind.check(asked, tokenizer)
    if kind.only_task is not None:  # before it is looked for columns that such data do not have
        _check_task(name, task, kind.only_task, kind.texts)
    read = kind.load(asked)
    _check_task(name, task, read.task.name, not isinstance(read, Source))
    return read if isinstance(read, Source) else tokenised(read, tokenizer, max_length, vocab_size)


def _check_task(name: str | os.PathLike[str], asked: str | None, own: str, texts: bool) -> None:
    """Refuse a task that data are not for.

    Raises:
        ConfigError: names both.
    """
    if asked not in (None, own):
        what = "texts, which are " if texts else ""
        raise ConfigError(f"the data '{name}' are {what}for {own}, not for {asked}{meant(asked, [own])}")
