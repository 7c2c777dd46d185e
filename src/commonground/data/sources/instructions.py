"""Instructions and their answers, for language models: Alpaca's JSON and the commonsense tasks' (LLM-Adapters)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commonground.data.arrays import Array
from commonground.data.names import sorted_names
from commonground.data.sources.table import held_out, positions
from commonground.data.text.prompts import alpaca_prompt
from commonground.data.text.samples import TextData, TextSamples
from commonground.errors import DataError
from commonground.tasks import AnswerTokens

__all__ = ["instruction_data", "load_instructions", "read_objects"]

_OWN = ("instruction", "input", "output", "answer", "split")
_NO_ANSWERS = "answer"  # the one class of data without answers to tell apart

Row = Mapping[str, Any]


def load_instructions(
    path: Path,
    *,
    test: Path | None = None,
    client_column: str | None = None,
    seed: int = 0,
    owner: str | None = None,
) -> TextData:
    """Prompts and answers from a .json file (a list of objects) or a .jsonl file (an object a line).

    An object has ``instruction`` and ``output``, and may have ``input`` (Alpaca, Taori et al. 2023) and ``answer``, the
    short answer that a longer output gives (``the correct answer is true``: Hu et al. 2023); answers are the classes of
    a split by labels. Prompts are in Alpaca's format. Further fields, if every object has them, may say whom an object
    belongs to.

    Test objects are those of ``test``; without it those of a file ``test.json`` or ``test.jsonl`` beside a file
    called ``train``; without one those with ``"split": "test"``; else a quarter of each client's objects (of
    each answer's objects when there is no client field), held out at random.

    Args:
        path: the file, UTF-8.
        test: a second file with the test objects.
        client_column: the field that says whom an object belongs to.
        seed: keys the hold-out.
        owner: whose all objects are, if they are one client's: the same are held out as of its objects among many's.

    Raises:
        DataError: a file is missing or no such JSON, or a field is missing or no text (object named).
    """
    rows, numbers = read_objects(path)
    test = test or _beside(path)
    if test is None:
        return instruction_data(path.name, rows, numbers, path, client_column=client_column, seed=seed, owner=owner)
    more, more_numbers = read_objects(test)
    name = path.name if path.stem != "train" else f"{path.resolve().parent.name}{path.suffix}"
    given = (more, more_numbers, test)
    return instruction_data(name, rows, numbers, path, client_column=client_column, test=given)


def instruction_data(
    name: str,
    rows: Sequence[Row],
    numbers: Sequence[int],
    origin: Path,
    *,
    client_column: str | None = None,
    test: tuple[Sequence[Row], Sequence[int], Path] | None = None,
    seed: int = 0,
    owner: str | None = None,
) -> TextData:
    """As :func:`load_instructions`, from objects that are read already.

    Args:
        name: of the data.
        rows: the objects; with ``test``, the training objects.
        numbers: where each stands.
        origin: the file they come from.
        client_column: the field that says whom an object belongs to.
        test: test objects, their numbers and file.
        seed: keys the hold-out.
        owner: whose all objects are, if they are one client's.
    """
    parts = [(rows, numbers, origin)] if test is None else [(rows, numbers, origin), test]
    wheres = [f"{path}, object {number}" for _, counted, path in parts for number in counted]
    everything = [row for part, _, _ in parts for row in part]
    answers = _answers(everything, wheres)
    class_names = sorted_names(answers)
    y = positions(answers, class_names)
    columns = _columns(everything, wheres, client_column)
    if test is not None:
        is_test = np.arange(len(everything)) >= len(rows)
    elif any("split" in row for row in everything):
        is_test = _given_split(everything, wheres)
    else:
        whole = owner is not None or client_column is not None
        groups = answers if client_column is None else columns[client_column]
        groups = groups if owner is None else np.full(len(everything), owner)
        is_test = held_out(origin, groups, whole, seed)
    if is_test.all() or not is_test.any():
        raise DataError(
            f"{origin} has {(~is_test).sum()} training objects and {is_test.sum()} test objects; both need at least 1"
        )

    def part(chosen: Array, path: Path) -> TextSamples:
        index = np.flatnonzero(chosen).tolist()
        counted = [number for _, part_numbers, _ in parts for number in part_numbers]
        return TextSamples(
            [_prompt(everything[i], wheres[i]) for i in index],
            [_text(everything[i], "output", wheres[i]) for i in index],
            y[chosen],
            {column: cells[chosen] for column, cells in columns.items()},
            str(path),
            "object",
            [counted[i] for i in index],
        )

    return TextData(name, part(~is_test, origin), part(is_test, parts[-1][2]), class_names, AnswerTokens())


def read_objects(path: Path) -> tuple[list[Row], list[int]]:
    """The objects of a .json (a list) or .jsonl file (one a line) and the number of each, counted from 1.

    Raises:
        DataError: the file is missing or no such JSON.
    """
    lines = path.suffix.lower() == ".jsonl"
    try:
        text = path.read_text(encoding="utf-8-sig")
        if lines:
            read = [(number, json.loads(line)) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        else:
            whole = json.loads(text)
            if not isinstance(whole, list):
                raise DataError(f"{path} is not a list of objects with 'instruction' and 'output'")
            read = list(enumerate(whole, 1))
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; JSON in UTF-8 is expected") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} could not be read as JSON{' lines' if lines else ''}: {error}") from None
    for number, row in read:
        if not isinstance(row, dict):
            raise DataError(f"{path}, object {number} is {type(row).__name__}, not an object with fields")
    if not read:
        raise DataError(f"{path} holds no objects; at least one is needed")
    return [row for _, row in read], [number for number, _ in read]


def _beside(path: Path) -> Path | None:
    if path.stem != "train":
        return None
    return next((test for suffix in (".json", ".jsonl") if (test := path.with_name(f"test{suffix}")).is_file()), None)


def _text(row: Row, field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str):
        found = "is missing" if value is None else f"is {type(value).__name__}, not text"
        raise DataError(f"{where}: '{field}' {found}")
    if not value.strip():
        raise DataError(f"{where}: '{field}' is empty")
    return value


def _prompt(row: Row, where: str) -> str:
    given = row.get("input")
    return alpaca_prompt(_text(row, "instruction", where), "" if given in (None, "") else _text(row, "input", where))


def _answers(rows: Sequence[Row], wheres: Sequence[str]) -> Any:
    if not any("answer" in row for row in rows):
        return np.full(len(rows), _NO_ANSWERS)
    return np.array([_value(row, "answer", where) for row, where in zip(rows, wheres, strict=True)])


def _columns(rows: Sequence[Row], wheres: Sequence[str], client_column: str | None) -> dict[str, Any]:
    names = {name: None for row in rows for name in row if name not in _OWN}  # in the order of their first use
    columns: dict[str, Any] = {}
    for name in names:
        if all(isinstance(row.get(name), str | int) and str(row[name]).strip() for row in rows):
            columns[name] = np.array([str(row[name]).strip() for row in rows])
    if client_column is not None and client_column not in columns:
        columns[client_column] = np.array(
            [_value(row, client_column, where) for row, where in zip(rows, wheres, strict=True)]
        )
    return columns


def _value(row: Row, field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str | int) or not str(value).strip():
        raise DataError(f"{where}: '{field}' is {'missing' if value is None else 'not a text or whole number'}")
    return str(value).strip()


def _given_split(rows: Sequence[Row], wheres: Sequence[str]) -> Any:
    values = [str(row.get("split", "")).strip().lower() for row in rows]
    for value, where in zip(values, wheres, strict=True):
        if value not in ("train", "test"):
            raise DataError(f"{where}: 'split' is {value!r}, neither 'train' nor 'test'")
    return np.array([value == "test" for value in values])
