"""Kinds of data, told by the name that a user gives: a known name, pictures, LEAF's, instructions, texts, a table."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from commonground.catalogue import unknown_data
from commonground.data.source import Source
from commonground.data.sources.hub import PREFIX, load_hub
from commonground.data.sources.image_folders import has_clients, is_image_folder
from commonground.data.sources.images import CLIENT, load_images
from commonground.data.sources.instructions import load_instructions
from commonground.data.sources.leaf import USER, is_leaf, load_leaf
from commonground.data.sources.named import NAMED
from commonground.data.sources.text_table import TEXT_COLUMNS, load_text_table
from commonground.data.tables.huggingface import hub_dataset, raw_of_dataset
from commonground.data.tables.load import LABEL, load_table
from commonground.data.tables.options import TableOptions
from commonground.data.tables.raw import RawTable
from commonground.data.tables.read import check_form, first_rows, is_table
from commonground.data.tables.schema import TableSchema
from commonground.data.text.samples import TextData
from commonground.errors import ConfigError
from commonground.quoting import quoted

__all__ = ["DataKind", "ReadRequest", "kind_of"]


@dataclass(frozen=True)
class ReadRequest:
    """What is asked of a kind of data; see :func:`~commonground.data.sources.load_source`."""

    data_dir: Path
    download: bool = True
    seed: int = 0
    label: str | None = None
    client_column: str | None = None
    task: str | None = None
    options: TableOptions | None = None
    schema: TableSchema | None = None
    owner: str | None = None

    @property
    def of_table(self) -> bool:
        """Whether something is said that only tables have: a target, or how columns are read, split or left out."""
        return self.label is not None or replace(self.options or TableOptions(), client_column=None) != TableOptions()

    @property
    def with_clients(self) -> TableOptions:
        """How a table is read, with the client column."""
        return replace(self.options or TableOptions(), client_column=self.client_column)


class DataKind(ABC):
    """One kind of data.

    Attributes:
        name: as the user gave it.
        texts: whether they are texts, for pretrained models.
        needs_tokenizer: whether there is nothing but texts in them.
        takes_tokenizer: whether a tokenizer finds something to read.
        columns: whether there are columns to drop, read or split by.
        targets: whether the target is a column that may have any name.
        resized: whether pictures can be made of one size.
        only_task: what such data are for, where that is known before they are read.
        otherwise: what whoever names no tokenizer may have meant.
        partition: the partition used when the user names none.
    """

    texts: bool = False
    needs_tokenizer: bool = False
    takes_tokenizer: bool = False
    columns: ClassVar[bool] = False
    targets: ClassVar[bool] = False
    resized: ClassVar[bool] = False
    only_task: ClassVar[str | None] = None
    otherwise: ClassVar[str] = ""
    partition: str = "iid"

    def __init__(self, name: str) -> None:
        self.name, self.path = name, Path(name).expanduser()

    def as_read(self, tokenizer: Any, asked: ReadRequest | None = None) -> DataKind:
        """The kind they are with this tokenizer, or without one, for whoever asks this."""
        return self

    def check(self, asked: ReadRequest, tokenizer: Any) -> None:
        """Refuse what this kind has no use for.

        Raises:
            ConfigError: names it.
        """
        for why in self._refused(asked, asked.options or TableOptions(), tokenizer):
            raise ConfigError(f"the data '{self.name}' are {why}")

    def _refused(self, asked: ReadRequest, options: TableOptions, tokenizer: Any) -> Iterator[str]:
        if tokenizer is None and self.needs_tokenizer:
            yield (
                "texts and need a tokenizer: choose a Hugging Face model, as in --model hf:roberta-base (in Python, "
                f'tokenizer="hf:roberta-base"){self.otherwise}'
            )
        if tokenizer is not None and not self.takes_tokenizer:
            yield "no texts; a tokenizer (of a model hf:NAME) has nothing to read there"
        if options.image_size and not self.resized:
            yield f"no folder of pictures, which --image-size {options.image_size} resizes"
        if not self.columns and replace(options, client_column=None) != TableOptions():
            yield "no table; there are no columns to drop, read or split by"
        if asked.label not in (None, LABEL) and not self.targets:
            yield f"no table, so that there is no target column {quoted(asked.label)}"

    @abstractmethod
    def load(self, asked: ReadRequest) -> Source | TextData:
        """Read them; of texts what is not tokenised yet."""


class NamedSource(DataKind):
    """A source that has a name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.info = NAMED[name]
        self.partition = self.info.partition
        self.texts = self.needs_tokenizer = self.takes_tokenizer = self.info.text

    def load(self, asked: ReadRequest) -> Source | TextData:
        """See :meth:`DataKind.load`."""
        return self.info.load(asked.data_dir, asked.download)


class ImageFolder(DataKind):
    """A folder of pictures."""

    columns = resized = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.partition = f"column:{CLIENT}" if has_clients(self.path) else "iid"

    def load(self, asked: ReadRequest) -> Source | TextData:
        """See :meth:`DataKind.load`."""
        return load_images(self.path, seed=asked.seed, options=asked.with_clients)


class LeafFiles(DataKind):
    """Users and their samples, in LEAF's form."""

    columns = True
    partition = f"column:{USER}"

    def load(self, asked: ReadRequest) -> Source | TextData:
        """See :meth:`DataKind.load`."""
        return load_leaf(self.path, seed=asked.seed, options=asked.with_clients)


class InstructionFile(DataKind):
    """A file of instructions and answers."""

    texts = needs_tokenizer = takes_tokenizer = True

    def as_read(self, tokenizer: Any, asked: ReadRequest | None = None) -> DataKind:
        """See :meth:`DataKind.as_read`: a table may have a column of that name."""
        table = tokenizer is None and asked is not None and asked.of_table and is_table(self.name)
        return TableFile(self.name) if table else self

    def check(self, asked: ReadRequest, tokenizer: Any) -> None:
        """See :meth:`DataKind.check`; of a .json file that is said to be a table, how to write one."""
        if tokenizer is None and asked.of_table:
            check_form(self.path)
        super().check(asked, tokenizer)

    def _refused(self, asked: ReadRequest, options: TableOptions, tokenizer: Any) -> Iterator[str]:
        if replace(options, client_column=None) != TableOptions():
            yield (
                "instructions and answers, of which the fields instruction, input and output are read; there are no "
                "columns to drop, read or split by"
            )
        yield from super()._refused(asked, options, tokenizer)

    def load(self, asked: ReadRequest) -> Source | TextData:
        """See :meth:`DataKind.load`."""
        return load_instructions(self.path, client_column=asked.client_column, seed=asked.seed, owner=asked.owner)


class TableFile(DataKind):
    """A table of numbers and categories; with a tokenizer its texts are read."""

    columns = targets = takes_tokenizer = True

    def as_read(self, tokenizer: Any, asked: ReadRequest | None = None) -> DataKind:
        """See :meth:`DataKind.as_read`."""
        return self if tokenizer is None else TextTable(self.name)

    def load(self, asked: ReadRequest) -> Source | TextData:
        """See :meth:`DataKind.load`."""
        return self.read(self.path, asked)

    @staticmethod
    def read(table: Path | RawTable, asked: ReadRequest) -> Source:
        """From a file, or from one that was read."""
        return load_table(
            table,
            label=asked.label,
            seed=asked.seed,
            task=asked.task,
            options=asked.with_clients,
            schema=asked.schema,
            owner=asked.owner,
        )


class TextTable(DataKind):
    """A table of texts."""

    texts = needs_tokenizer = takes_tokenizer = True
    columns = targets = True
    only_task = "classification"
    otherwise = "; if it is a table of numbers and categories, name its target (--target, in Python target=…)"

    def as_read(self, tokenizer: Any, asked: ReadRequest | None = None) -> DataKind:
        """See :meth:`DataKind.as_read`: without a tokenizer it is a table, if it is said to be one."""
        said = asked is not None and (asked.of_table or asked.client_column is not None)
        return TableFile(self.name) if tokenizer is None and said else self

    def load(self, asked: ReadRequest) -> Source | TextData:
        """See :meth:`DataKind.load`."""
        return load_text_table(
            self.path,
            label=asked.label or LABEL,
            client_column=asked.client_column,
            seed=asked.seed,
            options=asked.with_clients,
            like=asked.schema,
            owner=asked.owner,
        )


class Hub(DataKind):
    """A data set of the Hugging Face hub: texts with a tokenizer, else a table."""

    texts = takes_tokenizer = True
    columns = targets = True

    def as_read(self, tokenizer: Any, asked: ReadRequest | None = None) -> DataKind:
        """See :meth:`DataKind.as_read`."""
        return self if tokenizer is None else HubTexts(self.name)

    def load(self, asked: ReadRequest) -> Source | TextData:
        """See :meth:`DataKind.load`."""
        return TableFile.read(raw_of_dataset(hub_dataset(self.name, asked.download), Path(self.name)), asked)


class HubTexts(Hub):
    """Texts of the hub."""

    def load(self, asked: ReadRequest) -> Source | TextData:
        """See :meth:`DataKind.load`."""
        return load_hub(
            self.name,
            download=asked.download,
            label=asked.label or LABEL,
            client_column=asked.client_column,
            seed=asked.seed,
            options=asked.with_clients,
            like=asked.schema,
            owner=asked.owner,
        )


class Unknown(DataKind):
    """A name that says nothing."""

    def check(self, asked: ReadRequest, tokenizer: Any) -> None:
        """Refuse it.

        Raises:
            DataError: always.
        """
        check_form(self.path)
        raise unknown_data(self.name)

    def load(self, asked: ReadRequest) -> Source | TextData:
        """Never: it is refused before."""
        raise AssertionError(self.name)


def kind_of(name: str | os.PathLike[str]) -> DataKind:
    """The kind of data that a name, or what lies there, stands for.

    A .tsv or .jsonl file is of texts unless it has neither instructions nor columns of words as :func:`load_text_table`
    finds them; other tables are of numbers and categories unless a tokenizer is given with them. Without a tokenizer
    whoever says what only a table has, such as its target, means a table (:meth:`DataKind.as_read`).
    """
    text = os.fspath(name)
    path, ending = Path(text).expanduser(), text.lower().removesuffix(".gz")
    if text in NAMED:
        return NamedSource(text)
    if text.startswith(PREFIX):
        return Hub(text)
    if is_leaf(path):
        return LeafFiles(text)
    if text.lower().endswith(".json"):
        return InstructionFile(text)
    if ending.endswith((".tsv", ".jsonl")):
        return _of_lines(path, text.lower())(text)
    if is_table(text):
        return TableFile(text)
    return (ImageFolder if is_image_folder(path) else Unknown)(text)


def _of_lines(path: Path, ending: str) -> type[DataKind]:
    """By the fields of the first rows; a file without any says so when it is read."""
    fields, rows = first_rows(path)
    if ending.endswith(".jsonl") and (not fields or "instruction" in fields):
        return InstructionFile
    texts = (all(name in fields and _has_words(rows, name) for name in names) for names in TEXT_COLUMNS)
    return TextTable if not fields or "instruction" in fields or any(texts) else TableFile


def _has_words(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether the first cells of a column may be texts: there are none, or one that is no number."""
    cells = [cell for row in rows if (cell := row.get(name)) not in (None, "")]
    return not cells or any(isinstance(cell, str) and not _is_number(cell) for cell in cells)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True
