"""The rows of a request, as a run's models take them: of a table, of texts, or plain numbers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.tables.features import check_columns, ignored, known_features, strange_cells
from commonground.data.tables.load import LABEL
from commonground.data.tables.read import RawTable
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.split import FEW
from commonground.data.text import TextSamples, load_tokenizer
from commonground.engine.named_columns import named_columns, schema_of_texts
from commonground.engine.run import Run
from commonground.engine.trained import Trained
from commonground.errors import ConfigError, DataError
from commonground.name_lists import plain_name
from commonground.prediction.tables import targets_of
from commonground.prediction.texts import tokens_of
from commonground.quoting import quoted
from commonground.serve.tables import Row, named_rows, tables_of

__all__ = ["SERVED", "Row", "RowReader", "reader_of"]

Rows = Sequence[Row] | Sequence[Any]
Notes = list[tuple[str, ...]]
Tables = Sequence[tuple[npt.NDArray[np.int64], RawTable]]

SERVED = "the run of this service"  # whose folder is nothing to tell
TEXT = "text"  # the column of texts of a run that knows none by name


class RowReader(ABC):
    """Reads rows.

    Args:
        run: whose models are asked.

    Attributes:
        columns: what rows consist of; empty where samples are plain numbers.
        example: a row of the right form, for the page.
        at_once: rows that are computed together.
    """

    columns: Sequence[str] = ()
    example: Any = (0.0, 0.0)
    at_once = 1 << 16

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def alone(self) -> AbstractContextManager[Any]:
        """What is held while rows are read and computed; nothing where several threads may."""
        return nullcontext()

    @abstractmethod
    def read(self, trained: Trained, rows: Rows, client: str, number: int) -> tuple[Any, Notes]:
        """Samples, and for each what is worth knowing of its row.

        Args:
            trained: the run's tensors, with all clients that have been added.
            rows: of one form.
            client, number: of who asks.

        Raises:
            DataError: they are not of the training rows' form.
        """

    @abstractmethod
    def examples(self, rows: Sequence[Row], client: str) -> tuple[Any, Any]:
        """Samples and targets of a new client.

        Args:
            rows: with the target's columns.
            client: its name.

        Raises:
            ConfigError: a service cannot add clients to such a run.
            DataError: rows of another form, or a target is missing or unknown.
        """

    def _targets(self, tables: Tables, schema: TableSchema) -> Any:
        """Targets in the task's stored form, of every row."""
        parts, where = [], np.concatenate([places for places, _ in tables])
        for places, raw in tables:
            y, known = targets_of(self.run.trained, raw, schema)
            lacking = np.flatnonzero(~known | (y < 0 if y.ndim == 1 else False))
            if len(lacking):
                what = " or ".join(schema.targets)
                raise DataError(f"row {places[lacking[0]] + 1} has no {what}, or one that the run does not know")
            parts.append(y)
        return np.concatenate(parts)[np.argsort(where)]


class NumberRows(RowReader):
    """Nested lists of numbers."""

    def read(self, trained: Trained, rows: Rows, client: str, number: int) -> tuple[Any, Notes]:
        """See :meth:`RowReader.read`."""
        try:
            found = np.asarray(rows)
        except (ValueError, TypeError, OverflowError):
            found = np.empty(0, dtype=object)
        if found.dtype.kind not in "iuf":  # words and truth values are none
            raise DataError("samples are lists of numbers, all of one shape")
        return found.astype(np.float64), [()] * len(rows)

    def examples(self, rows: Sequence[Row], client: str) -> tuple[Any, Any]:
        """Refused: a row is an object with its target, and these are none."""
        raise ConfigError(f"{SERVED} is of no table and no texts; new clients are added by `commonground adapt --keep`")


class TableRows(RowReader):
    """Objects of cells by a table's columns' names."""

    def __init__(self, run: Run, schema: TableSchema) -> None:
        super().__init__(run)
        self.schema, self.columns = schema, schema.needed
        self.example = dict.fromkeys(schema.needed)

    def read(self, trained: Trained, rows: Rows, client: str, number: int) -> tuple[Any, Notes]:
        """See :meth:`RowReader.read`."""
        notes: Notes = [()] * len(rows)
        x = self._inputs(tables_of(rows, self.columns, self._numbers), len(rows), notes)
        trained.scale(x, number)
        _check_owner(rows, self.schema, client)
        return x, [(*told, *ignored(row, self.schema)) for told, row in zip(notes, rows, strict=True)]

    def examples(self, rows: Sequence[Row], client: str) -> tuple[Any, Any]:
        """See :meth:`RowReader.examples`."""
        if self.schema.client_scales:
            raise ConfigError(
                f"{SERVED} scales by each client's own statistics; new clients are added by `commonground adapt --keep`"
            )
        _check_owner(rows, self.schema, client)
        tables = tables_of(rows, [*self.schema.needed, *self.schema.targets], self._numbers)
        return self._inputs(tables, len(rows)), self._targets(tables, self.schema)

    @property
    def _numbers(self) -> Collection[str]:
        """Columns in which 1 and 1.0 are the same."""
        return {column.name for column in self.schema.features if column.kind == "number"}

    def _inputs(self, tables: Tables, rows: int, notes: Notes | None = None) -> Any:
        """The rows as inputs before scaling [rows, inputs]; what is strange in each is added to the notes."""
        x = np.empty((rows, len(self.schema.inputs)), np.float32)
        for places, raw in tables:
            x[places], strange = known_features(raw, self.schema)
            if strange and notes is not None:
                for place, told in zip(places, strange_cells(raw, self.schema), strict=True):
                    notes[place] = told
        return x


class TextRows(RowReader):
    """Objects of a text, or a pair of texts, by its column's name.

    One thread at a time reads and computes: a tokenizer and the base that all clients' models have in common are not
    made for several.
    """

    at_once = 64  # so that nobody waits for all of a long request

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        trained = run.trained
        # A run on texts that are no user's table knows classes alone.
        self.schema = schema_of_texts(trained) or named_columns(trained, LABEL, None)
        self.columns = trained.text_columns or (TEXT,)
        self.example = dict.fromkeys(self.columns, "")
        self._lock = threading.Lock()

    @property
    def alone(self) -> AbstractContextManager[Any]:
        """See :attr:`RowReader.alone`."""
        return self._lock

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self.run.config.model)

    def read(self, trained: Trained, rows: Rows, client: str, number: int) -> tuple[Any, Notes]:
        """See :meth:`RowReader.read`."""
        named = named_rows(rows)
        _check_owner(named, self.schema, client)
        tokens = self._tokens(named)
        most = trained.longest_text
        full = tokens[:, 0, 1] >= most
        told = f"fills the {most} tokens that are read; what is longer is cut"
        known = dict.fromkeys(self.columns)
        others = [[name for name in row if name not in known] for row in named]
        return tokens, [
            (*((told,) if cut else ()), *ignored(left, self.schema)) for cut, left in zip(full, others, strict=True)
        ]

    def examples(self, rows: Sequence[Row], client: str) -> tuple[Any, Any]:
        """See :meth:`RowReader.examples`."""
        named = named_rows(rows)
        _check_owner(named, self.schema, client)
        labels = [{name: row.get(name) for name in self.schema.targets} for row in named]
        y = self._targets(tables_of(labels, self.schema.targets), self.schema)
        with self.alone:
            return self._tokens(named), y

    def _tokens(self, rows: Sequence[Row]) -> Any:
        texts: list[list[str]] = []
        for number, row in enumerate(rows, 1):
            check_columns(Path(f"row {number}"), row, self.columns)
            cells = [row[name] for name in self.columns]
            for name, cell in zip(self.columns, cells, strict=True):
                if not isinstance(cell, str) or not cell.strip():
                    what = "is empty" if cell is None or isinstance(cell, str) else "is no text"
                    raise DataError(f"row {number}: the text {quoted(name)} {what}")
            texts.append([str(cell).strip() for cell in cells])
        first, *second = (list(column) for column in zip(*texts, strict=True))
        samples = TextSamples(
            first, second[0] if second else None, np.zeros(len(first), np.int64), origin="the request", unit="row",
            numbers=range(1, 1 + len(first)),
        )  # fmt: skip
        return tokens_of(self.run, samples, tokenizer=self._tokenizer)


def reader_of(run: Run) -> RowReader:
    """What reads the rows of a run's clients.

    Raises:
        ConfigError: the run is of a language model, which answers instructions.
    """
    trained = run.trained
    if trained.task.generative:
        raise ConfigError(
            f"{trained.where} is of a language model that writes answers; a service is for tables, numbers and texts "
            "that have classes"
        )
    if trained.reads_text:
        return TextRows(run)
    return NumberRows(run) if trained.schema is None else TableRows(run, trained.schema)


def _check_owner(rows: Sequence[Any], schema: TableSchema, client: str) -> None:
    """Refuse rows that name another client than the one that asks, or than those that were pooled into it.

    Raises:
        DataError: there is one.
    """
    of_few = schema.few_rows.get("clients", ()) if client == FEW and schema.few_rows.get("how") == "pool" else ()
    asks, pooled = plain_name(client), {plain_name(name) for name in of_few}  # as a run of before may not have them
    for number, row in enumerate(rows, 1):
        whose = {plain_name(name): cell for name, cell in row.items()}.get(schema.client_column or "")
        name = f"{whose:.0f}" if isinstance(whose, float) and whose.is_integer() else plain_name(str(whose))
        # JSON's true is True of a table and true of a file.
        same = isinstance(whose, bool) and name.lower() in (asks.lower(), *(one.lower() for one in pooled))
        if whose is not None and not same and name not in ("", asks, *pooled):
            raise DataError(
                f"row {number} is of {schema.client_column} {quoted(str(whose), 40)}, and who asks is "
                f"{quoted(client)}; every client asks for its own rows"
            )
