"""A client's own table, before and after all clients have agreed on what its columns become."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commonground.data.described import class_places
from commonground.data.federated import FederatedDataset
from commonground.data.tables.affixes import known_units
from commonground.data.tables.cells import is_text, words_of
from commonground.data.tables.divide import complete_rows, divided, names_of_nothing, split_column
from commonground.data.tables.features import (
    check_columns,
    find_features,
    kind_of_dropped,
    readings_of,
    readings_said,
    said_of_counting,
    said_of_doubles,
)
from commonground.data.tables.kinds import WRITTEN, Column, Reading, read_column
from commonground.data.tables.load import load_table
from commonground.data.tables.notation import check_points, leaves_open
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import RawTable, read_raw
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.targets import Targets, read_targets
from commonground.data.tables.told import (
    LONGEST,
    MOST_WORDS,
    Agreed,
    Columns,
    ColumnStatistics,
    ColumnTold,
    Statistics,
    StatisticsRequest,
)
from commonground.errors import DataError, UpdateError
from commonground.name_lists import listed, names_in, plain_name
from commonground.quoting import quoted
from commonground.single_precision import rounding_shows

__all__ = ["OwnTable", "may_become", "table_data"]

TEST_SEED = 0
"""By which a client's test rows are drawn unless its owner says otherwise: it reads its table before any run."""


_MOST_UNITS = 4  # of a column, one more than anybody reads


class OwnTable:
    """The table of one client, all of whose rows are its own.

    Args:
        path: the file.
        name: the client's.
        target: the column that is predicted, or several, separated by commas.
        task: what is learnt; by default as :func:`~commonground.data.tables.load.load_table` has it.
        options: how the table is read. Columns that are dropped are never told of.
        least: a category of fewer training rows, and numbers where fewer rows have one, are not told.

    Attributes:
        columns: what is told of it first.
        notes: sentences for its owner about how it was read.

    Raises:
        DataError, ConfigError: as :func:`~commonground.data.tables.load.load_table`.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        target: str,
        *,
        task: str | None = None,
        options: TableOptions | None = None,
        least: int = 1,
    ) -> None:
        self.path, self.least, self.options = path, least, options or TableOptions()
        self._words, self._stamp = (name, target, task), _stamp_of(path)
        raw = read_raw(path, self.options.separator, self.options.encoding)
        target = plain_name(target)
        labels = [target] if target in raw.columns else list(names_in(target))
        check_columns(path, raw.columns, [*labels, *self.options.drop, *self.options.kinds])
        self._raw, self._lacking = complete_rows(raw, labels, task, self.options)
        self.notes = self._raw.notes
        given = split_column(self._raw, labels, self.options)
        said = self.options.readings
        targets = read_targets(self._raw, labels, task, said=said)
        rows = divided(self._raw, targets, given, self.options, TEST_SEED, name)
        self.notes += rows.notes + targets.notes
        taken = {*labels, given, self.options.time_column, self.options.group_column}
        features, dropped = find_features(self._raw, taken, self.options)
        check_points(self._raw, said, readings_of(features), targets.readings, rows.readings)
        self._training = rows.train
        if targets.task.name == "classification":
            strange = targets.strange(rows.train, rows.test)
            self.notes += (*names_of_nothing(self._raw, labels[:1]), *([strange] if strange else []))
        about = {
            "name": name,
            "train": int(self._training.sum()),
            "columns": self._looks(features, dropped),
            "targets": tuple(labels),
            "task": targets.task.name,
            "class_names": self._told_classes(targets, labels[0]),
            "target_decimals": targets.decimals,
            "target_affixes": targets.affixes,
            "doubtful": self._doubtful({**readings_of(features), **targets.readings}, dropped),
            "units": self._units(dropped),
            "version": version("commonground"),
        }
        self.columns = Columns.model_validate(about)

    def _told_classes(self, targets: Targets, label: str) -> tuple[str, ...]:
        """Names of the classes as others are told them (:attr:`~commonground.data.tables.cells.Cells.told`)."""
        if targets.task.name != "classification":
            return targets.names
        cells = words_of(self._raw.columns[label], keep=True)
        short = dict(zip(cells.words, cells.told, strict=True))
        return tuple(short.get(name, name) for name in targets.names)

    def current(self) -> OwnTable:
        """This table, or the one that its file holds now, if that was changed since it was read.

        Raises:
            DataError, ConfigError: as for the first one.
        """
        if _stamp_of(self.path) == self._stamp:
            return self
        name, target, task = self._words
        return OwnTable(self.path, name, target, task=task, options=self.options, least=self.least)

    def _looks(self, features: Mapping[str, Column], dropped: Mapping[str, str]) -> tuple[ColumnTold, ...]:
        """The columns that may become inputs, in the table's order, and how they look."""
        self.notes += readings_said(features)
        for name, column in features.items():
            self.notes += tuple(said_of_counting(name, column) + said_of_doubles(name, column, self._raw.columns[name]))
        readings = readings_of(features)
        readings |= {n: Reading(kind) for n, why in dropped.items() if (kind := kind_of_dropped(why)) is not None}
        looks = [(name, readings[name]) for name in self._raw.names if name in readings]
        truths = {name for name, column in features.items() if column.truths}
        plain = [
            {"name": name, "kind": r.kind, "decimal": r.decimal, "order": r.order, "truths": name in truths}
            | {"clocks": self._clocks(name, r), "affix": r.affix or ""}
            for name, r in looks
        ]
        return tuple(map(ColumnTold.model_validate, plain))

    def _units(self, dropped: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """The units of columns whose numbers have several; they are of a list that all know, and so are told."""
        several = [name for name, why in dropped.items() if kind_of_dropped(why) == "units"]
        return {name: known_units(words_of(self._raw.columns[name]))[:_MOST_UNITS] for name in several}

    def _clocks(self, name: str, reading: Reading) -> bool | None:
        """Whether a column's numbers are times; None where they are stored as numbers, which may be seconds."""
        if name in self._raw.seconds:
            return True
        return reading.clocks if is_text(self._raw.columns[name].type) else None

    def _doubtful(self, readings: Mapping[str, Reading], dropped: Mapping[str, str]) -> tuple[str, ...]:
        """Columns whose cells leave open how they are written, and of which the owner does not say."""
        constant = {n: Reading("constant") for n, why in dropped.items() if kind_of_dropped(why) == "constant"}
        # That a column holds dates (--kinds since=date) does not say how they are written.
        said = {name for name, reading in self.options.readings.items() if reading != Reading("date")}
        return tuple(
            name
            for name, reading in (constant | dict(readings)).items()
            if name not in said and leaves_open(self._raw.columns[name], reading)
        )

    def statistics(self, asked: StatisticsRequest) -> Statistics:
        """What the server needs to know of the training rows.

        Raises:
            UpdateError: it asks for a column that this client has not told of, or for one to be read otherwise; or a
                cell does not fit, which only the error's cause names.
        """
        self._check(asked.columns)
        return Statistics(columns=tuple(self._of(column, column.name in asked.counted) for column in asked.columns))

    def load(self, agreed: Agreed) -> FederatedDataset:
        """The table as all clients read theirs; its rows are those of which :meth:`statistics` are told.

        Raises:
            UpdateError: it is about other columns or targets than this client has told of; or a cell does not fit,
                which only the error's cause names.
        """
        self._check(agreed.features)
        own = self.columns
        if (agreed.targets, agreed.task) != (own.targets, own.task):
            raise UpdateError(f"the server asks for other targets than {', '.join(map(quoted, own.targets))}")
        class_places(own.class_names, agreed.class_names)
        try:
            schema = self._as_written(agreed)
            # What features hold and how they are written is in it by now; truths may be categories to all others.
            kinds = {n: kind for n, kind in self.options.kinds.items() if n not in {f.name for f in schema.features}}
            data = table_data(self._raw, schema, self.columns.name, replace(self.options, kinds=kinds))
        except DataError as error:
            raise UpdateError("its table cannot be read as agreed; its own log says where") from error
        assert data.schema is not None
        return replace(
            data,
            origin=replace(data.origin, schema=replace(data.schema, missing_targets=self._lacking)),
            counted_classes=data.task.softmax,
        )

    @cached_property
    def _offered(self) -> dict[str, ColumnTold]:
        """The columns that may become inputs, by name."""
        return {column.name: column for column in self.columns.columns}

    def _own(self, asked: ColumnTold) -> Reading:
        """How this client writes a column that holds what is asked for."""
        own = self._offered[asked.name]
        return replace(own.reading, clocks=asked.clocks) if own.kind == asked.kind else asked.reading

    def _as_written(self, agreed: Agreed) -> TableSchema:
        """What all have agreed on, with numbers and dates as this client writes them."""
        own = {feature.name: self._own(feature) for feature in agreed.features if feature.kind in WRITTEN}
        decimals = zip(self.columns.targets, self.columns.target_decimals, strict=False)
        schema = agreed.schema_of_all().written(own | {name: Reading("number", decimal) for name, decimal in decimals})
        truths = {feature.name: feature.truths for feature in agreed.features}
        return replace(schema, features=tuple(replace(one, truths=truths[one.name]) for one in schema.features))

    def _check(self, columns: tuple[ColumnTold, ...]) -> None:
        """Nothing is read that the client's owner has dropped, and no text or identifier as categories."""
        for column in columns:
            own = self._offered.get(column.name)
            if own is None:
                raise UpdateError(f"the server asks for the column {quoted(column.name)}, which is not offered here")
            if not may_become(own, column):
                raise UpdateError(
                    f"the server asks for the column {quoted(column.name)} as {column.kind}, and here it is {own.kind}"
                )

    def _of(self, asked: ColumnTold, counted: bool) -> ColumnStatistics:
        raw, name = self._raw, asked.name
        try:
            column = read_column(raw.path, name, raw.columns[name], self._own(asked), raw.where)
        except DataError as error:
            raise UpdateError(
                f"its column {quoted(name)} cannot be read as {asked.kind}; its own log says where"
            ) from error
        if column.numbers is None:
            return self._categories(column, counted)
        values = column.numbers[self._training]
        there = values[~np.isnan(values)]
        present, missing = len(there), len(values) - len(there)
        if present < self.least or not present:
            return ColumnStatistics(present=0, missing=missing)
        # As they become inputs: in single precision, unless that rounds away what they differ by.
        rounded = rounding_shows(float(np.abs(there).max()), float(there.std()) or 1.0)
        seen = there if rounded else there.astype(np.float32).astype(np.float64)
        mean = float(seen.mean())
        return ColumnStatistics(
            present=present,
            missing=missing,
            mean=mean,
            squares=float(np.square(seen - mean).sum()),
            times=asked.kind == "date" and bool((there % 1 != 0).any()),
        )

    def _categories(self, column: Column, counted: bool) -> ColumnStatistics:
        assert column.cells is not None
        codes = column.cells.codes[self._training]
        counts = np.bincount(codes[codes >= 0], minlength=len(column.cells.words))
        words = column.cells.told
        often: npt.NDArray[np.int64] = np.argsort(-counts, kind="stable")
        told = [int(i) for i in often if counts[i] >= max(1, self.least) and len(words[i]) <= LONGEST][:MOST_WORDS]
        if not counted:
            told.sort(key=words.__getitem__)  # how often is not told, not by their order either
        return ColumnStatistics(
            present=int((codes >= 0).sum()),
            missing=int((codes < 0).sum()),
            words=tuple(words[i] for i in told),
            rows=tuple(int(counts[i]) for i in told) if counted else (),
        )


def may_become(own: ColumnTold, asked: ColumnTold) -> bool:
    """Whether a column that looks like one kind to a client may be read as another: one that is always the same, or
    empty, as any; truths as categories. How numbers and dates are written is the client's own.
    """
    if own.kind in ("id", "text", "units") or asked.kind in ("id", "text", "units", "constant"):
        return False
    if own.kind == "constant" or (own.kind, asked.kind) == ("boolean", "category"):
        return True
    return own.kind == asked.kind


def _stamp_of(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """By which a file that was written anew, or a folder with such files, is known."""
    found = [path, *(sorted(path.rglob("*")) if path.is_dir() else ())]
    with suppress(OSError):  # whoever reads it says what is wrong
        states = [(str(one), one.stat()) for one in found]
        return tuple((name, state.st_ino, state.st_mtime_ns, state.st_size) for name, state in states)
    return ()


def table_data(
    path: Path | RawTable, schema: TableSchema, owner: str, options: TableOptions | None = None
) -> FederatedDataset:
    """All rows of a table, or of one that was read already, as one client's data by a schema.

    Test rows are, unless the options or a column say otherwise, those that a run with seed 0 on a table of many clients
    would hold out of this one's.

    Args:
        path: the table.
        schema: how it becomes inputs and targets.
        owner: the client's name.
        options: how it is read beside.

    Raises:
        DataError: a cell does not fit its column (line and column named), or a class is none of the schema's.
    """
    label = listed(schema.targets)
    found = load_table(path, label=label, task=schema.task, schema=schema, options=options, seed=TEST_SEED, owner=owner)
    if unknown := sorted({*found.class_names} - {*schema.class_names}):
        where = path.path if isinstance(path, RawTable) else path
        raise DataError(
            f"{where}: the column {quoted(schema.targets[0])} holds {', '.join(map(quoted, unknown[:3]))}, and the "
            f"classes are {', '.join(map(quoted, schema.class_names[:10]))}"
        )
    data = FederatedDataset.from_arrays(
        [(found.x_train, found.y_train, found.x_test, found.y_test)],
        name="table",
        classes=len(schema.class_names),
        class_names=schema.class_names,
        preprocess=found.preprocess,
        task=found.task,
    )
    own = found.origin.schema
    assert own is not None
    # What became of this client's rows is for its owner; nothing of it is told.
    kept = schema.written({} if options is None else options.readings)  # by which its own model reads its tables
    schema = replace(kept, few_rows={}, missing_targets=own.missing_targets, notes=own.notes)
    return replace(data, origin=replace(found.origin, schema=schema, relearn=None))
