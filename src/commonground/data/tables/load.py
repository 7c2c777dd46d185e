"""From a table's file to samples: features, targets, clients, test rows, and the schema that says it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Array
from commonground.data.sources.base import Source
from commonground.data.tables import scale, split
from commonground.data.tables.cells import words_of
from commonground.data.tables.encode import encode
from commonground.data.tables.features import check_columns, find_features, known_features, learn_features
from commonground.data.tables.kinds import Column, understand
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import RawTable, read_raw
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.split import Owners
from commonground.data.tables.targets import Targets, full_words, read_targets
from commonground.errors import ConfigError, DataError
from commonground.quoting import quoted
from commonground.tasks import Regression

__all__ = ["load_table", "owners_of"]

LONGEST_NAME = 200  # characters of a client's name

Marks = npt.NDArray[np.bool_]


def load_table(
    path: Path,
    *,
    label: str = "label",
    seed: int = 0,
    task: str | None = None,
    options: TableOptions | None = None,
    schema: TableSchema | None = None,
) -> Source:
    """Samples from a table with a column per feature.

    Numbers are stored as they are, in float32, and scaled on their way into the model; categories become an input each,
    dates a number of days with the place in year and week, truths 0 and 1; what is missing is filled with the median
    and marked by an input of its own (:mod:`~commonground.data.tables.encode`). All of this is learnt from training
    rows, all clients' together, and kept in the source's ``schema``. Columns that name a row, texts and words that are
    always the same are left out, which the schema's ``notes`` say.

    Args:
        path: the file, or a folder of equal ones (:data:`~commonground.data.tables.read.FORMS`).
        label: the label's column; its values may be any text and become classes in sorted order. For a regression the
            target's, and for several labels theirs, separated by commas.
        seed: keys the hold-out: without a column ``split`` or one that the options name, a quarter of each client's
            rows (of each class's rows when there is no client column).
        task: ``classification``, ``regression`` or ``multilabel``; by default classification, unless the label is
            plainly a quantity.
        options: whom rows belong to, what is left out, and all else that can be said.
        schema: of a run, whose columns, encoders and scales are taken in place of learnt ones.

    Raises:
        ConfigError: tables have no such task, or an option does not fit.
        DataError: the file is missing or no such table, a cell does not fit its column (line and column named), or
            nobody said whether a column of many different numbers is to be predicted as such.
    """
    options = options or TableOptions()
    if options.text_column:
        raise ConfigError(f"the text column {quoted(options.text_column[0])} needs a model that reads texts: hf:NAME")
    raw = read_raw(path, options.separator, options.encoding)
    labels = _labels(raw, label, options)
    split_column = _split_column(raw, labels, options)
    beside = tuple(filter(None, (split_column, options.time_column, options.group_column)))
    found = None if schema else find_features(raw, {*labels, options.client_column, *beside}, options)
    targets = read_targets(raw, labels, task, schema.class_names if schema else ())
    rows = _divided(raw, targets, split_column, options, seed)
    about = TableSchema(
        features=(),
        targets=tuple(labels),
        task=targets.task.name,
        class_names=targets.names,
        client_column=options.client_column,
        beside=beside,
        target_decimals=targets.decimals,
        scaling=options.scaling,
        few_rows=rows.owners.few,
        split=rows.how,
    )
    if found is None:
        assert schema is not None
        about, x = _as_in_run(raw, about, rows, schema)
    else:
        about, x = _learnt(raw, about, rows, options, *found)
    strange = targets.strange(rows.train, rows.test)
    about = replace(about, notes=(*raw.notes, *about.notes, *([strange] if strange else [])))
    learnt = targets.task
    return Source(
        name=path.name,
        x_train=x[rows.train],
        y_train=targets.y[rows.train],
        x_test=x[rows.test],
        y_test=targets.y[rows.test],
        classes=len(targets.names),
        class_names=targets.names,
        task=learnt.standardised(targets.y[rows.train]) if isinstance(learnt, Regression) else learnt,
        preprocess=about.preprocess,
        train_columns=_columns(options, rows, rows.train),
        test_columns=_columns(options, rows, rows.test),
        schema=about,
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """Whose the rows are, and what each is for.

    Attributes:
        owners: of the rows.
        train, test: which rows are training and test rows [N]; rows of clients that are left out are neither.
        how: how the test rows were chosen, in words.
    """

    owners: Owners
    train: Marks
    test: Marks
    how: str


def _labels(raw: RawTable, label: str, options: TableOptions) -> list[str]:
    """The target columns; all columns that are named are there."""
    labels = [label] if label in raw.columns else [name.strip() for name in label.split(",")]
    special = (options.client_column, options.split_column, options.time_column, options.group_column)
    check_columns(raw.path, raw.names, [*labels, *filter(None, special), *options.drop, *options.kinds])
    if options.client_column in labels:
        both = quoted(str(options.client_column))
        raise DataError(f"{raw.path}: the column {both} cannot be both the label and the client column")
    for name in options.drop:
        if name in labels or name in special:
            raise ConfigError(f"the column {quoted(name)} cannot be dropped: it is the label or says whose a row is")
    return labels


def owners_of(raw: RawTable, column: str | None) -> Owners:
    """Whose each row is, by a column; without one, nobody's in particular.

    Raises:
        DataError: a cell is empty (line and column named), or a name is too long for one.
    """
    if column is None:
        return Owners([""], np.zeros(raw.rows, dtype=np.int64))
    cells = full_words(raw, column)
    longest = max(cells.words, key=len)
    if len(longest) > LONGEST_NAME:
        raise DataError(
            f"{raw.path}, column {quoted(column)}: {quoted(longest, 40)} has {len(longest):,} characters; a client's "
            f"name has at most {LONGEST_NAME}"
        )
    return Owners(cells.words, cells.codes)


def _split_column(raw: RawTable, labels: Sequence[str], options: TableOptions) -> str | None:
    """The column of ``train`` and ``test``, if the table has one."""
    if options.split_column or options.time_column or options.group_column:
        return options.split_column
    taken = (*labels, options.client_column, *options.drop)
    return "split" if "split" in raw.columns and "split" not in taken else None


def _divided(raw: RawTable, targets: Targets, column: str | None, options: TableOptions, seed: int) -> Rows:
    """Whose the rows are, and which of them are test rows."""
    owners, is_test = owners_of(raw, options.client_column), None
    if column is not None:
        is_test = split.given_tests(raw.path, column, words_of(raw.columns[column]), raw.where)
    if options.client_column is not None:
        owners = split.few_rows(raw.path, owners, options, is_test)
    by = owners
    if options.client_column is None:
        by = Owners(targets.strata, targets.stratum)
    how = f"by the column {column}"
    if is_test is None:
        is_test, how = _tests(raw, by, options, seed)
    used = owners.codes >= 0
    train, test = used & ~is_test, used & is_test
    if not train.any() or not test.any():
        raise DataError(f"{raw.path} has {train.sum()} training rows and {test.sum()} test rows; both need at least 1")
    return Rows(owners, train, test, how)


def _tests(raw: RawTable, by: Owners, options: TableOptions, seed: int) -> tuple[Marks, str]:
    """Test rows where no column says train or test, and how they were chosen."""
    share = options.test_share
    if options.time_column is not None:
        times = understand(
            raw.path, options.time_column, raw.columns[options.time_column], raw.typed, raw.where
        ).numbers
        if times is None:
            raise DataError(
                f"{raw.path}: the time column {quoted(options.time_column)} holds neither dates nor numbers"
            )
        for row in np.flatnonzero(np.isnan(times))[:1]:
            raise DataError(
                f"{raw.path}, {raw.where(int(row))}, column {quoted(options.time_column)}: no time is given"
            )
        return split.last_tests(by.parts(), times, share), f"the last {share:.0%} by the column {options.time_column}"
    if options.group_column is not None:
        groups = full_words(raw, options.group_column)
        chosen = split.grouped_tests(raw.path, by.parts(), groups, share, seed)
        return chosen, f"{share:.0%} of the groups of the column {options.group_column}, at random"
    return split.held_out_tests(by.parts(), raw.rows, share, seed), f"{share:.0%} at random"


def _as_in_run(
    raw: RawTable, about: TableSchema, rows: Rows, schema: TableSchema
) -> tuple[TableSchema, npt.NDArray[np.float32]]:
    """All rows as a run's inputs, and its schema for these rows."""
    x, strange = known_features(raw, schema)
    about = replace(
        schema,
        class_names=about.class_names,
        client_column=about.client_column,
        few_rows=about.few_rows,
        split=about.split,
        notes=tuple(strange),
    )
    if about.scaling == "client":
        about = scale.by_clients(about, x, rows.test, rows.owners.parts())
    return about, x


def _learnt(
    raw: RawTable,
    about: TableSchema,
    rows: Rows,
    options: TableOptions,
    features: dict[str, Column],
    dropped: dict[str, str],
) -> tuple[TableSchema, npt.NDArray[np.float32]]:
    """All rows as inputs, and the schema that training rows say."""
    about, features = learn_features(raw, about, features, dropped, rows.train)
    if options.bounds:
        about = scale.bounded(about, options)
    x = encode(about, features, raw.rows)
    if about.scaling == "pooled":
        about = scale.pooled(about, x[rows.train])
    elif about.scaling == "client":
        about = scale.by_clients(about, x, rows.test, rows.owners.parts())
    return replace(about, notes=(*about.notes, *_said(about))), x


def _said(about: TableSchema) -> list[str]:
    """What became of the columns, where they are not all plain numbers."""
    kinds = [f"{len(about.of_kind(kind))} {kind}" for kind in ("number", "category", "date", "boolean")
             if about.of_kind(kind)]  # fmt: skip
    missing = [column.name for column in about.features if column.missing]
    if not about.dropped and not missing and len(about.of_kind("number")) == len(about.features):
        return []
    left = "".join(f"; left out: {quoted(name)} ({why})" for name, why in list(about.dropped.items())[:5])
    more = f"; cells are missing in {len(missing)} of them" if missing else ""
    whose = {"pooled": "; means and deviations are of all clients' training rows together"}.get(about.scaling, "")
    return [f"{len(about.features)} columns ({', '.join(kinds)}) make {len(about.inputs)} inputs{more}{left}{whose}"]


def _columns(options: TableOptions, rows: Rows, chosen: Marks) -> dict[str, Array]:
    if options.client_column is None:
        return {}
    return {options.client_column: np.array(rows.owners.names)[rows.owners.codes[chosen]]}
