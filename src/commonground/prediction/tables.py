"""A finished run's models on a table: columns by name, many clients at once, the metric where the target is there."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.counted import counted
from commonground.data.tables.cells import words_of
from commonground.data.tables.divide import owners_of
from commonground.data.tables.features import check_columns, ignored, known_features
from commonground.data.tables.notation import column_of, telling_ways
from commonground.data.tables.options import table_options
from commonground.data.tables.raw import FILE, client_of_file
from commonground.data.tables.read import RawTable, check_form, is_table, read_raw
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.split import FEW
from commonground.data.tables.targets import as_run_read
from commonground.engine.predictions import outputs_of
from commonground.engine.trained import Trained
from commonground.errors import DataError
from commonground.name_lists import plain_name
from commonground.prediction.headings import headings
from commonground.quoting import quoted
from commonground.tasks import Headline, Task
from commonground.tasks.class_figures import class_figures
from commonground.tasks.headline import Metric
from commonground.tasks.rank import is_share

__all__ = [
    "ModelOutputs",
    "Note",
    "TableAnswers",
    "Whose",
    "agreement",
    "answers_of",
    "asked_of",
    "features_of",
    "predict_table",
    "targets_of",
]

Note = Callable[[str], None]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Whose:
    """Whose models are asked: by default each row's own client's.

    Attributes:
        client: the one that is asked of all rows.
        shared: ask the global model instead.
    """

    client: int | None = None
    shared: bool = False

    @property
    def said(self) -> bool:
        """Whether one model is asked of all rows."""
        return self.shared or self.client is not None


@dataclass(frozen=True)
class TableAnswers:
    """What a run says of a table.

    Attributes:
        header: the columns: the row's number from 0, its client, columns that name a row, then what is predicted.
        rows: a row for each row of the table, in its order.
        metric: how well that agrees with the target, in words; empty if the table has none.
    """

    header: list[str]
    rows: list[list[str]]
    metric: str


def predict_table(
    trained: Trained,
    path: Path,
    whose: Whose,
    note: Note,
    *,
    separator: str | None = None,
    encoding: str | None = None,
    kinds: str | None = None,
) -> TableAnswers:
    """What the clients' own models say of the rows of a table.

    Args:
        trained: of a run on a table.
        path: the table; columns are found by name, in any order, and those that the run does not know are ignored.
        whose: models are asked; rows say their clients by the run's client column.
        note: hears what is worth knowing of the file.
        separator, encoding: of a text file.
        kinds: how columns of numbers or dates are written (``a=comma-number,b=date:%d.%m.%Y``), where that is not as
            in training.

    Raises:
        ConfigError: nobody said whose model to ask, or there is no such kind.
        DataError: a column is missing, a cell does not fit (line and column named), or a client is unknown.
    """
    check_form(path)
    if not is_table(str(path)):
        raise DataError(f"'{path}' is no table with names of columns, which {trained.where} needs")
    column = None if trained.schema is None else trained.schema.client_column
    raw = read_raw(path, separator, encoding, client_column=column)
    x, schema = features_of(trained, raw, kinds, note)
    return answers_of(trained, raw, schema, x, whose, note)


def features_of(
    trained: Trained, raw: RawTable, kinds: str | Mapping[str, str] | None, note: Note
) -> tuple[Any, TableSchema]:
    """A table's rows as the run's samples, and the run's columns as this table writes them.

    Args:
        trained: of a run on a table.
        raw: the table.
        kinds, note: see :func:`predict_table`.

    Raises:
        ConfigError: there is no such kind.
        DataError: a column is missing, or a cell does not fit.
    """
    assert trained.schema is not None
    said = table_options({"kinds": kinds}).readings
    check_columns(raw.path, raw.columns, said)
    schema = trained.schema.written(said)
    with telling_ways(raw, schema):
        x, strange = known_features(raw, schema)
    for sentence in (*raw.notes, *ignored(raw.names, schema), *strange):
        note(f"{raw.path.name}: {sentence}")
    return x, schema


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """What the clients' models return.

    Attributes:
        outputs: of the networks, a row for each row of the table.
        predicted: what the task makes of them [rows, columns].
        parts: rows that one model was asked of.
        clients: whose each of these models is; None for the global one.
    """

    outputs: Tensor
    predicted: npt.NDArray[np.float64]
    parts: list[Rows]
    clients: list[int | None]


def answers_of(
    trained: Trained, raw: RawTable, schema: TableSchema, x: npt.NDArray[Any], whose: Whose, note: Note
) -> TableAnswers:
    """What the clients' own models say of a table that is read.

    Args:
        trained: of a run on such a table.
        raw: the table.
        schema: its columns of clients, of what names a row and of targets.
        x: the samples, one for each of its rows.
        whose, note: see :func:`predict_table`.

    Raises:
        ConfigError: nobody said whose model to ask.
        DataError: a client is unknown.
    """
    asked = asked_of(trained, raw, schema, x, whose, note)
    header, answers = trained.task.table(asked.predicted, trained.split["class_names"])
    kept = [name for name in (schema.client_column, *schema.ids) if name is not None and name in raw.columns]
    beside = [_shown(raw, name) for name in kept]
    rows = [[str(row), *(cells[row] for cells in beside), *answer] for row, answer in enumerate(answers)]
    metric = _metric(trained, raw, schema, asked.outputs, asked.predicted, asked.parts)
    added = sorted({client for client in asked.clients if client is not None and client >= trained.clients})
    if metric and added:
        names = ", ".join(quoted(trained.known.names[client]) for client in added[:3]) + (
            ", …" if len(added) > 3 else ""
        )
        note(
            f"{names} came after the run, with {'a head' if len(added) == 1 else 'heads'} trained on rows that may be "
            "among these; how good that is on others, adapt said when it kept them"
        )
    return TableAnswers(headings(("row", ["sample"]), ("column", kept), ("predicted", header)), rows, metric)


def asked_of(
    trained: Trained, raw: RawTable, schema: TableSchema, x: npt.NDArray[Any], whose: Whose, note: Note
) -> ModelOutputs:
    """As :func:`answers_of`, in numbers."""
    parts = list(_parts(trained, raw, schema, whose, note))
    outputs = _outputs(trained, x, parts)
    return ModelOutputs(
        outputs, trained.task.predict(outputs), [rows for _, rows in parts], [client for client, _ in parts]
    )


def _shown(raw: RawTable, column: str) -> list[str]:
    cells = words_of(raw.columns[column], keep=True)
    words = [*cells.words, ""]  # the last is that of an empty cell, whose code is -1
    return [words[code] for code in cells.codes] if len(cells.codes) else words


def _parts(
    trained: Trained, raw: RawTable, schema: TableSchema, whose: Whose, note: Note
) -> Iterator[tuple[int | None, Rows]]:
    """Whose model (None: the global one) is asked of which rows."""
    if whose.said:
        column = schema.client_column
        if whose.client is not None and column is not None and column in raw.columns:
            name = trained.known.names[whose.client]
            cells = words_of(raw.columns[column], keep=True)
            each = zip(cells.words, cells.counts, strict=True)
            others = sum(count for word, count in each if _as_number(word) != _as_number(plain_name(name)))
            if others:
                asked = f"the model of {quoted(name)} is asked of them too"
                note(f"{raw.path.name}: {counted(others, 'row')} of other clients; {asked}")
        yield whose.client, np.arange(raw.rows)
        return
    if schema.client_column is None or schema.client_column not in raw.columns:
        if schema.client_column is None and trained.one_for_all:
            yield None, np.arange(raw.rows)
            return
        wanted = f"column {quoted(schema.client_column)}" if schema.client_column else "client column"
        if schema.client_column == FILE and trained.known.find(name := client_of_file(raw.path.name)) is not None:
            wanted += f" (in a folder each file is a client's; of this file alone say --client {shlex.quote(name)})"
        yield trained.only_client(f"{raw.path} has no {wanted}"), np.arange(raw.rows)
        return
    numbers = {name: number for number, name in enumerate(trained.known.names)}
    numbers = {plain_name(name): number for name, number in numbers.items()} | numbers
    by_value = {_as_number(name): number for name, number in numbers.items()}
    few = [plain_name(name) for name in schema.few_rows.get("clients", ())]
    place = dict.fromkeys(few, numbers.get(FEW)) if schema.few_rows.get("how") in ("pool", "shared") else {}
    otherwise = f"ask one model for all rows by --client{' or --global' if trained.has_global_model else ''}"
    parts = list(owners_of(raw, schema.client_column, otherwise).parts())
    for name, _ in parts:
        if name not in numbers and name not in place and (same := by_value.get(_as_number(name))) is not None:
            numbers[name] = same
    unknown = [name for name, _ in parts if name not in numbers and name not in place]
    if unknown:
        near = difflib.get_close_matches(unknown[0], numbers, n=1)
        if unknown[0] in few:
            hint = " (left out, having few rows)"
        else:
            hint = f" (did you mean {quoted(near[0])}?)" if near else ""
        others = ", and --global asks the shared model" if trained.has_global_model else ""
        raise DataError(
            f"{raw.path}: {len(unknown):,} of the {len(parts):,} clients took no part in the run, the first is "
            f"{quoted(unknown[0])}{hint}; `commonground adapt` serves new ones{others}"
        )
    for name, rows in parts:
        yield numbers.get(name, place.get(name)), rows


def _as_number(name: str) -> str:
    """A client's name as of a column of numbers, of which files write whole ones as 1 or 1.0."""
    return name.removesuffix(".0")


def _outputs(trained: Trained, x: Any, parts: list[tuple[int | None, Rows]]) -> Tensor:
    """What the models return, a row for each row of the table."""
    outputs: Tensor | None = None
    for client, rows in parts:
        own = x[rows]
        trained.scale(own, client)
        said = outputs_of(trained, own, client)
        if outputs is None:
            outputs = torch.empty((len(x), *said.shape[1:]), dtype=said.dtype)
        outputs[torch.from_numpy(rows)] = said
    assert outputs is not None
    return outputs


def _metric(
    trained: Trained,
    raw: RawTable,
    schema: TableSchema,
    outputs: Tensor,
    predicted: npt.NDArray[np.float64],
    parts: list[Rows],
) -> str:
    """The metrics over the rows that have a target, in words; empty if there is none."""
    if not all(name in raw.columns for name in schema.targets):
        return ""
    y, known = targets_of(trained, raw, schema)
    if not known.any():
        return ""
    remark, unknown = "", known & (y < 0) if trained.task.softmax else np.zeros(0, dtype=bool)
    if unknown.any():
        classes = words_of(raw.columns[schema.targets[0]], keep=True)
        first = ", ".join(quoted(classes.words[code], 40) for code in np.unique(classes.codes[unknown])[:3])
        remark = f" ({unknown.sum():,} of them of classes that the run does not know, {first}: they count as wrong)"
    return agreement(trained.task, y, known, outputs, predicted, parts, remark)


def agreement(
    task: Task,
    y: npt.NDArray[Any],
    known: npt.NDArray[np.bool_],
    outputs: Tensor,
    predicted: npt.NDArray[np.float64],
    parts: list[Rows],
    remark: str = "",
) -> str:
    """How well predictions agree with targets, in words.

    Args:
        task: what is predicted.
        y: targets [N, …] in the task's stored form.
        known: the rows that have one [N].
        outputs: of the networks [N, …].
        predicted: what the task makes of them [N, columns].
        parts: each client's rows.
        remark: on the rows, put behind their number.
    """
    headline = Headline.of(task)
    every = task.scores(outputs, task.as_tensor(y, outputs.dtype))

    def over(rows: list[Rows]) -> npt.NDArray[np.float64]:
        """The metric of each of some sets of rows."""
        sets = [torch.from_numpy(r) for r in rows]
        means = {n: torch.stack([v.double()[r].mean(0) for r in sets]).numpy() for n, v in every.items()}
        return task.metrics(means)[headline.key]

    whole = over([np.flatnonzero(known)])[0]
    said = f"{headline.name} {headline.show(float(whole))} over {counted(int(known.sum()), 'row')}{remark}"
    own = [rows[known[rows]] for rows in parts if known[rows].any()]
    clients = over(own)
    if len(own) > 1 and not np.isnan(clients).all():
        said += f", {headline.show(float(np.nanmean(clients)))} as the mean over {counted(len(own), 'client')}"
    return said + (_class_figures(y, predicted, known, own) if task.softmax else "")


def _class_figures(y: Rows, predicted: npt.NDArray[np.float64], known: npt.NDArray[np.bool_], own: list[Rows]) -> str:
    """What classes are judged by beside accuracy, in words: over all rows, and as means over the clients."""
    inside = known & (y >= 0)  # classes that the run does not know have no probability
    parts = [rows[inside[rows]] for rows in own if inside[rows].any()]
    if not parts:
        return ""
    whole = class_figures(y[inside], predicted[inside], np.zeros(int(inside.sum()), dtype=np.int64), 1)
    rows, owner = np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    each = class_figures(y[rows], predicted[rows], owner, len(parts)) if len(parts) > 1 else {}
    shown = []
    for key, (value,) in whole.items():
        metric = Metric(key, is_share(key))
        text = f"{metric.name} {metric.show(None if np.isnan(value) else float(value))}"
        clients = each[key][~np.isnan(each[key])] if each else np.empty(0)
        shown.append(text + (f" ({metric.show(float(clients.mean()))})" if len(clients) else ""))
    whose = "all rows" if inside.sum() == known.sum() else f"the {counted(int(inside.sum()), 'row')} of known classes"
    return f"\n{', '.join(shown)} over {whose}{' (as means over clients)' if each else ''}"


def targets_of(trained: Trained, raw: RawTable, schema: TableSchema) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Targets in the task's stored form, and which rows have one; classes that the run does not know count as wrong."""
    if trained.task.softmax:
        cells = words_of(raw.columns[schema.targets[0]], keep=True)
        numbers = np.array([*cells.places(schema.class_names), -1], dtype=np.int64)
        return numbers[cells.codes], cells.codes >= 0
    values = []
    decimals = schema.target_decimals or ("point",) * len(schema.targets)  # earlier versions knew no other
    readings = as_run_read(raw, schema.targets, decimals, schema.target_affixes)
    for name in schema.targets:
        column = column_of(raw, name, readings)
        assert column.numbers is not None
        values.append(column.numbers)
    y = np.stack(values, axis=1)
    known: npt.NDArray[np.bool_] = np.asarray(~np.isnan(y).any(axis=1))
    return trained.task.targets(np.where(known[:, None], y, 0.0), schema.targets[0]), known
