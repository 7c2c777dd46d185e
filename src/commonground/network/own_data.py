"""A client's own data, from its own host: a folder of arrays, a table, texts, or a function of a Python file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from commonground.data import FederatedDataset
from commonground.data.arrays import Preprocess
from commonground.data.from_code import data_from_code
from commonground.data.own_table import OwnTable, table_data
from commonground.data.own_texts import text_data
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import is_table
from commonground.data.tables.schema import TableSchema
from commonground.errors import ConfigError, DataError
from commonground.name_lists import option
from commonground.user_code import is_code

__all__ = ["ARRAYS", "TableWords", "own_data", "write_arrays"]

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


ABOUT = "data.json"


class DataManifest(BaseModel):
    """What ``data.json`` may say of the arrays; it has to say the same at all clients.

    Attributes:
        name: of the data.
        class_names: one per class (target, label).
        scale, mean, std: how samples become a model's inputs (:class:`~commonground.data.Preprocess`).
        task: what is learnt.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "arrays"
    class_names: tuple[str, ...] | None = None
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    task: str = "classification"


class TableWords(NamedTuple):
    """What a client's owner says of a table, or of texts.

    Attributes:
        target, task, least: of one without a schema, see :class:`~commonground.data.own_table.OwnTable`.
        options: how it is read.
        tokenizer: of texts, ``hf:NAME_OR_FOLDER`` of the model that reads them; None where there are none.
        max_length: most tokens of a text.
    """

    target: str | None = None
    task: str | None = None
    options: TableOptions = TableOptions()
    least: int = 1
    tokenizer: str | None = None
    max_length: int = 128


def own_data(
    source: str, name: str, schema: Path | None = None, words: TableWords | None = None
) -> FederatedDataset | OwnTable:
    """The data set of one client, or its table, if what becomes of its columns is still to be agreed on.

    Args:
        source: a folder with ``x_train.npy``, ``y_train.npy``, ``x_test.npy`` and ``y_test.npy``, and perhaps
            ``data.json`` (:class:`DataManifest`), or ``file.py:function``, which returns a list of four such arrays or
            a :class:`~commonground.data.FederatedDataset` with one client.
        name: the client's.
        schema: of a table (:func:`~commonground.data.tables.read.is_table`), the ``schema.json`` of a run, which says
            for all clients alike how its columns become inputs and what they are scaled by.
        words: on a table; one without a schema has a target, and all clients then agree on a schema. With a tokenizer
            the table is of texts, or the file of instructions (.json, .jsonl).

    Raises:
        DataError: something is missing, or the arrays make no data set.
        ConfigError: the function cannot be used, or a table has neither a schema nor a target.
    """
    words = words or TableWords()
    if words.tokenizer is not None:
        return _of_texts(source, name, schema, words, words.tokenizer)
    if words.options.text_column:
        raise ConfigError(
            f"{option('--text-column', *words.options.text_column)} is of texts, which a model's tokenizer reads: add "
            "--tokenizer hf:NAME, the model that the run adapts"
        )
    if is_table(source):
        return _of_table(Path(source), name, schema, words)
    if schema is not None or words.target is not None:
        raise ConfigError(f"--schema and --target are for tables, and '{source}' is none")
    if is_code(source):
        found, _ = data_from_code(source, {"client": name})
        if not isinstance(found, FederatedDataset):
            raise ConfigError(f"'{source}' returned a source to be divided; a client's function returns its own data")
        if found.clients != 1:
            raise DataError(f"'{source}' returned the data of {found.clients} clients, not of one")
        return found
    folder = Path(source)
    if not folder.is_dir():
        raise DataError(f"the client's data '{source}' are neither a folder of arrays nor file.py:function")
    arrays = [_read(folder / f"{field}.npy") for field in ARRAYS]
    about = _about(folder / ABOUT)
    return FederatedDataset.from_arrays(
        [(arrays[0], arrays[1], arrays[2], arrays[3])],
        name=about.name,
        class_names=about.class_names,
        preprocess=Preprocess(about.scale, about.mean, about.std),
        task=about.task,
        one_of_many=True,
    )


def _of_table(path: Path, name: str, schema: Path | None, words: TableWords) -> FederatedDataset | OwnTable:
    """A table by the schema of a run, or one to agree on."""
    if schema is None:
        if words.target is None:
            raise ConfigError(
                f"the table '{path}' needs --target, the column to predict (all clients then agree on what its columns "
                "become), or --schema, the schema.json of a run"
            )
        return OwnTable(path, name, words.target, task=words.task, options=words.options, least=words.least)
    if words.target is not None or words.task is not None:
        raise ConfigError(f"the schema '{schema}' says what is predicted: leave out --target and --task")
    about = TableSchema.read(schema)
    if about.scaling == "client":
        raise ConfigError(f"the schema '{schema}' scales each client's rows by their own, which a network run does not")
    return table_data(path, about, name, words.options)


def _of_texts(source: str, name: str, schema: Path | None, words: TableWords, tokenizer: str) -> FederatedDataset:
    """Texts, which need no schema: classes apart there is nothing to agree on."""
    if not (is_table(source) or source.lower().endswith(".json")):
        raise ConfigError(f"--tokenizer reads a table of texts or a file of instructions, and '{source}' is neither")
    if schema is not None:
        raise ConfigError(f"the schema '{schema}' is of a table's numbers and categories, and --tokenizer reads texts")
    return text_data(
        Path(source),
        name,
        tokenizer,
        max_length=words.max_length,
        label=words.target,
        task=words.task,
        options=words.options,
    )


def write_arrays(data: FederatedDataset, client: int, folder: Path) -> None:
    """One client's samples as such a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = data.train_indices(client), data.test_indices(client)
    parts = (data.x_train[train], data.y_train[train], data.x_test[test], data.y_test[test])
    for field, values in zip(ARRAYS, parts, strict=True):
        np.save(folder / f"{field}.npy", values, allow_pickle=False)
    p = data.preprocess
    about = DataManifest(
        name=data.name, class_names=data.class_names, scale=p.scale, mean=p.mean, std=p.std, task=data.task.name
    )
    (folder / ABOUT).write_text(about.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _about(path: Path) -> DataManifest:
    if not path.is_file():
        return DataManifest()
    try:
        return DataManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise DataError(f"'{path}' does not describe the client's data: {where}: {first['msg']}") from None


def _read(path: Path) -> npt.NDArray[np.generic]:
    try:
        values: npt.NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"the client's array '{path}' cannot be read: {error}") from None
    return values
