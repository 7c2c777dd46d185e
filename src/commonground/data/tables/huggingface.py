"""Tables of the Hugging Face package ``datasets``: an object, a folder it was saved to, or one of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from commonground.data.tables.raw import RawTable, raw_of_arrow
from commonground.errors import ConfigError, DataError
from commonground.extras import pip_install
from commonground.quoting import escaped, quoted

__all__ = ["hub_dataset", "is_dataset", "is_saved_dataset", "raw_of_dataset", "read_saved_dataset"]

TESTS = ("test", "validation", "validation_matched", "dev")
SPLIT = "split"


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder was written by ``save_to_disk``."""
    single = (path / "dataset_info.json").is_file() and (path / "state.json").is_file()
    return single or (path / "dataset_dict.json").is_file()


def is_dataset(found: Any) -> bool:
    """Whether an object is a ``Dataset`` or a mapping of such (``DatasetDict``), as far as it is used here."""
    parts = list(found.values()) if isinstance(found, Mapping) else [found]
    return bool(parts) and all(hasattr(p, "column_names") and hasattr(p, "with_format") for p in parts)


def read_saved_dataset(path: Path) -> RawTable:
    """A folder that ``save_to_disk`` wrote.

    Raises:
        ConfigError: the package is not installed.
        DataError: the folder cannot be read, or holds no table.
    """
    datasets = _package(str(path))
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # the package raises many kinds
        raise DataError(f"{path} could not be read as a saved data set: {_first_line(error)}") from None
    return raw_of_dataset(found, path)


def hub_dataset(name: str, download: bool) -> Any:
    """A data set of the hub with all its parts; its name as :func:`~commonground.data.sources.hub.load_hub` has it.

    Raises:
        ConfigError: the package is not installed.
        DataError: it cannot be had.
    """
    parts = name.removeprefix("hf:").split("/")
    if parts[0] == "glue":
        parts.insert(0, "nyu-mll")
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise DataError(
            f"'{name}' names no data set of the hub; the form is hf:OWNER/NAME or hf:OWNER/NAME/CONFIGURATION"
        )
    datasets = _package(name)
    try:
        config = None if download else datasets.DownloadConfig(local_files_only=True)
        return datasets.load_dataset("/".join(parts[:2]), *parts[2:], download_config=config)
    except Exception as error:  # the package raises many kinds for a data set it cannot load
        raise DataError(f"the data '{name}' could not be had from the Hugging Face hub: {_first_line(error)}") from None


def raw_of_dataset(found: Any, path: Path = Path("the data set")) -> RawTable:
    """A data set as a table: classes (``ClassLabel``) as words, and its parts, where it has several, as a column
    ``split`` of ``train`` and ``test``.

    The test part is ``test``, unless its classes are hidden, else ``validation``. Other parts are left out, which a
    note says, and so are columns of pictures, sounds, lists and objects.

    Args:
        found: a ``Dataset`` or ``DatasetDict``.
        path: what to call it in messages.

    Raises:
        DataError: it is a stream, has no part ``train``, or no columns that a table has.
    """
    import pyarrow as pa

    parts = dict(found) if isinstance(found, Mapping) else {"train": found}
    for part in parts.values():
        if not hasattr(part, "__len__"):
            raise DataError(f"{path} is a stream ({type(part).__name__}); a data set whose rows are there is needed")
    if "train" not in parts:
        raise DataError(f"{path} has no part 'train'; its parts are: {', '.join(map(escaped, parts))}")
    tables = {name: _arrow_of(parts[name]) for name in ("train", *TESTS) if name in parts}
    test = next((name for name in TESTS if name in tables and not _hidden(tables[name], parts[name])), None)
    used = [tables["train"], *([tables[test]] if test else [])]
    if test is not None:
        if SPLIT in tables["train"].column_names:
            raise DataError(f"{path} has parts and a column {quoted(SPLIT)} as well; rename the column")
        marks = [pa.array([word] * len(t)) for word, t in zip(("train", "test"), used, strict=True)]
        used = [table.append_column(SPLIT, mark) for table, mark in zip(used, marks, strict=True)]
    try:
        raw = raw_of_arrow(path, pa.concat_tables(used, promote_options="permissive"))
    except pa.ArrowException as error:
        raise DataError(f"the parts of {path} cannot be one table: {quoted(str(error))}") from None
    if not raw.rows:
        raise DataError(f"{path} has 0 rows; at least one is expected")
    left = [name for name in parts if name not in ("train", test)]
    notes = [f"test rows are the part '{test}'"] if test else []
    notes += [f"left out: the parts {', '.join(map(quoted, left))}"] if left else []
    return replace(raw, notes=(*notes, *raw.notes))


def _arrow_of(part: Any) -> Any:
    """A part as a pyarrow table, classes as words."""
    import pyarrow as pa

    table = part.with_format("arrow")[:]
    for place, name in enumerate(table.column_names):
        words = getattr(part.features[name], "names", None)
        if words is not None:
            numbers = table.column(name).combine_chunks()
            known = pa.array([v if v is not None and v >= 0 else None for v in numbers.to_pylist()], pa.int64())
            table = table.set_column(place, name, pa.array(words, pa.string()).take(known))
    return table


def _hidden(table: Any, part: Any) -> bool:
    """Whether the classes of a part are not told."""
    classes = [name for name in table.column_names if getattr(part.features[name], "names", None) is not None]
    return any(table.column(name).null_count == len(table) for name in classes)


def _package(what: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError(f"the data '{what}' need the extra: {pip_install('datasets')}") from None
    return datasets


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
