"""LEAF's files (Caldas et al. 2018): JSON with users and the samples of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from commonground.data.names import sorted_names
from commonground.data.source import Origin, Source
from commonground.data.sources.parted import check_plain, parted
from commonground.data.tables.options import TableOptions
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.split import Owners
from commonground.errors import DataError
from commonground.quoting import quoted

__all__ = ["USER", "is_leaf", "load_leaf"]

USER = "user"
"""The column that says whose a sample is."""

_BEGINNING = re.compile(rb'\s*\{\s*"(users|num_samples|user_data|hierarchies)"\s*:')
_PARTS = ("train", "test")


def is_leaf(path: Path) -> bool:
    """Whether a file begins as LEAF's do, or a folder or its folder ``train`` holds one that does."""
    try:
        if path.is_dir():
            files = _files(path / "train") or _files(path)
            return bool(files) and is_leaf(files[0])
        with path.open("rb") as file:
            return path.suffix.lower() == ".json" and _BEGINNING.match(file.read(256)) is not None
    except OSError:
        return False


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def load_leaf(path: Path, *, seed: int = 0, options: TableOptions | None = None) -> Source:
    """Samples of LEAF's users: ``{"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}``.

    Samples are numbers of one shape, as of FEMNIST and the synthetic data, and enter the model as they are; labels are
    classes. A folder holds such files, or two folders of them, ``train`` and ``test``, which say what is tested;
    otherwise a share of each user's samples is held out as of a table's rows.

    Args:
        path: the file or folder.
        seed: keys the hold-out.
        options: of a table those on clients with few rows and the share of test rows.

    Raises:
        ConfigError: an option is one of tables alone.
        DataError: a file is no such JSON, or a user's samples are no numbers, of another shape than the others, or not
            as many as labels (the user is named).
    """
    options = options or TableOptions()
    check_plain(path, options, USER, "data in LEAF's form", "users")
    folders = path.is_dir() and bool(_files(path / "train"))
    if folders and not _files(path / "test"):
        raise DataError(f"{path} has a folder train and none called test with files of the same form")
    parts = [path / part for part in _PARTS] if folders else [path]
    rows = [(part, user, x, y) for part in parts for user, x, y in _users(part)]
    if not rows:
        raise DataError(f"{path} has no user with samples")
    shape = rows[0][2].shape[1:]
    for part, user, x, _ in rows:
        if x.shape[1:] != shape:
            raise DataError(
                f"{part}: the samples of user {quoted(user)} have shape {x.shape[1:]}, and those of "
                f"{quoted(rows[0][1])} {shape}"
            )
    x = np.concatenate([x for _, _, x, _ in rows])
    words = np.concatenate([y for *_, y in rows])
    names = list(dict.fromkeys(user for _, user, _, _ in rows))
    places = {name: place for place, name in enumerate(names)}
    owners = Owners(names, np.repeat([places[user] for _, user, _, _ in rows], [len(x) for _, _, x, _ in rows]))
    is_test = np.repeat([part.name == "test" for part, *_ in rows], [len(x) for _, _, x, _ in rows])
    found = parted(path, owners, is_test if folders else None, options, seed, None, "samples")
    classes = sorted_names(words)
    numbers = {name: number for number, name in enumerate(classes)}
    y = np.array([numbers[word] for word in words.tolist()], dtype=np.int64)
    about = TableSchema((), (), "classification", classes, few_rows=found.owners.few, split=found.how, scaling="none")
    return Source(
        name=path.name,
        **found.arrays(x, y, USER),
        classes=len(classes),
        class_names=classes,
        origin=Origin(read={**about.summary(), **found.owners.about_few()}),
    )


def _users(path: Path) -> Iterator[tuple[str, Any, Any]]:
    """Each user's name, samples [n, …] and labels as words [n], of a file or the files of a folder."""
    for file in _files(path) if path.is_dir() else [path]:
        try:
            whole = json.loads(file.read_text("utf-8-sig"))
        except (OSError, ValueError) as error:
            raise DataError(f"{file} could not be read: {str(error).splitlines()[0]}") from None
        data = whole.get("user_data") if isinstance(whole, Mapping) else None
        if not isinstance(data, Mapping):
            raise DataError(f"{file} has no 'user_data', an object with the samples of each user")
        for user, own in data.items():
            if not isinstance(own, Mapping) or not all(isinstance(own.get(name), list) for name in "xy"):
                raise DataError(f"{file}: user {quoted(user)} has no lists 'x' and 'y'")
            if own["x"] or own["y"]:
                yield user, _samples(file, user, own["x"]), _labels(file, user, own)


def _samples(file: Path, user: str, given: list[Any]) -> Any:
    try:
        x = np.asarray(given)
    except (ValueError, OverflowError):
        x = np.empty(0, object)
    if x.dtype.kind not in "iuf":
        what = "are no numbers of one shape"
        if any(isinstance(one, str | list) for one in given) and x.dtype.kind in "US":
            what = "are texts or names of files, of which none are read in this form"
        raise DataError(
            f"{file}: the samples of user {quoted(user)} {what}; of texts write a table with the columns text, label "
            "and user, and put pictures into folders USER/CLASS"
        )
    return np.ascontiguousarray(x.reshape(len(x), -1) if x.ndim == 1 else x, dtype=np.float32)


def _labels(file: Path, user: str, own: Mapping[str, Any]) -> Any:
    if len(own["x"]) != len(own["y"]):
        raise DataError(
            f"{file}: user {quoted(user)} has {len(own['x'])} samples and {len(own['y'])} labels; as many are needed"
        )
    words = [int(one) if isinstance(one, float) and one.is_integer() else one for one in own["y"]]
    if any(isinstance(word, list | dict | float) or word is None for word in words):
        raise DataError(f"{file}: a label of user {quoted(user)} is no class, which is a whole number or a word")
    return np.array(list(map(str, words)))
