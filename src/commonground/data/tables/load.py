"""From a table's file to samples: features, targets, clients, test rows, and the schema that says it all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commonground.data.arrays import Array
from commonground.data.source import Origin, Source
from commonground.data.tables import scale
from commonground.data.tables.divide import DividedRows, complete_rows, divided, names_of_nothing, split_column
from commonground.data.tables.encode import encode
from commonground.data.tables.features import (
    check_columns,
    find_features,
    known_features,
    learn_features,
    listed_columns,
    readings_of,
    said_of_counting,
    said_of_doubles,
    said_of_rounding,
    said_of_unseen,
)
from commonground.data.tables.kinds import Column
from commonground.data.tables.notation import check_points, telling_ways
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import RawTable, read_raw
from commonground.data.tables.schema import TableSchema
from commonground.data.tables.targets import as_run_read, read_targets
from commonground.errors import ConfigError, DataError
from commonground.name_lists import listed, names_in, plain_name
from commonground.quoting import quoted
from commonground.tasks import Regression

__all__ = ["load_table"]

LABEL = "label"  # the column of labels, where nobody names it

Marks = npt.NDArray[np.bool_]


def load_table(
    path: Path | RawTable,
    *,
    label: str | None = None,
    seed: int = 0,
    task: str | None = None,
    options: TableOptions | None = None,
    schema: TableSchema | None = None,
    held: Marks | None = None,
    owner: str | None = None,
) -> Source:
    """Samples from a table with a column per feature.

    Numbers are stored as they are, in float32, and scaled on their way into the model; categories become an input each,
    dates a number of days with the place in year and week, truths 0 and 1; what is missing is filled with the median
    and marked by an input of its own (:mod:`~commonground.data.tables.encode`). All of this is learnt from training
    rows, all clients' together, and kept in the source's ``schema``. Columns that name a row, texts and words that are
    always the same are left out, which the schema's ``notes`` say.

    Args:
        path: the file, or a folder of equal ones (:data:`~commonground.data.tables.read.FORMS`); or a table that was
            read already.
        label: the label's column; its values may be any text and become classes in sorted order. For a regression the
            target's, and for several labels theirs, separated by commas. By default the ``schema``'s, or ``label``.
        seed: keys the hold-out: without a column ``split`` or one that the options name, a quarter of each client's
            rows (of each class's rows when there is no client column).
        task: ``classification``, ``regression`` or ``multilabel``; by default classification, unless the label is
            plainly a quantity.
        options: whom rows belong to, what is left out, and all else that can be said.
        schema: of a run, whose columns, encoders and scales are taken in place of learnt ones; its targets, its task
            and its way of choosing test rows are the defaults.
        owner: whose all rows are, if they are one client's.
        held: training rows [training rows] of which nothing is learnt, since they are held out to judge by.

    Raises:
        ConfigError: tables have no such task, or an option does not fit.
        DataError: the file is missing or no such table, a cell does not fit its column (line and column named), or
            nobody said whether a column of many different numbers is to be predicted as such.
    """
    options = options or TableOptions()
    if options.text_column:
        raise ConfigError(
            f"the text column {quoted(options.text_column[0])} needs a model that reads texts: --model hf:roberta-base "
            '(in Python, tokenizer="hf:roberta-base")'
        )
    if isinstance(path, RawTable):
        raw = path
    else:
        raw = read_raw(path, options.separator, options.encoding, client_column=options.client_column)
    options, unlike = options.as_asked(schema.asked if schema else {}, raw.columns)
    if schema is not None:
        task = task or schema.task
        label = label or listed(schema.targets)
    label = plain_name(label or LABEL)
    labels = _labels(raw, label, options)
    raw, lacking = complete_rows(raw, labels, task, options)
    given = split_column(raw, labels, options)
    beside = tuple(filter(None, (given, options.time_column, options.group_column)))
    found = None if schema else find_features(raw, {*labels, options.client_column, *beside}, options)
    said = options.readings
    known = {}
    if schema and labels == list(schema.targets):
        known = as_run_read(raw, labels, schema.target_decimals, schema.target_affixes)
    classes = schema.class_names if schema else ()
    with telling_ways(raw, schema):
        targets = read_targets(raw, labels, task, classes, said={**known, **said})
    rows = divided(raw, targets, given, options, seed, owner)
    if found is not None:
        check_points(raw, said, readings_of(found[0]), targets.readings, rows.readings)
    learnt_from = rows.train.copy()
    if held is not None:
        learnt_from[np.flatnonzero(rows.train)[held]] = False
    about = TableSchema(
        features=(),
        targets=tuple(labels),
        task=targets.task.name,
        class_names=targets.names,
        client_column=options.client_column,
        beside=beside,
        target_decimals=targets.decimals,
        target_affixes=targets.affixes,
        scaling=options.scaling,
        few_rows=rows.owners.few,
        split=rows.how,
        missing_targets=lacking,
        asked={**options.of_rows, **({"kinds": rows.kinds} if rows.kinds else {})},
    )
    if found is None:
        assert schema is not None
        about, x = _as_in_run(raw, about, rows, schema, options)
    else:
        about, x = _learnt(raw, about, rows, learnt_from, options, *found)
    strange = targets.strange(learnt_from, rows.test, known=schema is not None)
    named = [options.client_column, *(labels if targets.task.name == "classification" else ())]
    about = replace(
        about,
        notes=(
            *raw.notes,
            *unlike,
            *rows.notes,
            *targets.notes,
            *about.notes,
            *names_of_nothing(raw, named),
            *([strange] if strange else []),
        ),
    )
    learnt = targets.task
    return Source(
        name=raw.path.name,
        x_train=x[rows.train],
        y_train=targets.y[rows.train],
        x_test=x[rows.test],
        y_test=targets.y[rows.test],
        classes=len(targets.names),
        class_names=targets.names,
        task=learnt.standardised(targets.y[learnt_from]) if isinstance(learnt, Regression) else learnt,
        preprocess=about.preprocess,
        train_columns=_columns(options, rows, rows.train),
        test_columns=_columns(options, rows, rows.test),
        origin=Origin(
            schema=about,
            test_names=raw.places(rows.test),
            related=rows.related,
            relearn=None if schema else partial(_relearnt, path, label, seed, task, options, owner),
        ),
    )


def _relearnt(
    path: Path | RawTable,
    label: str,
    seed: int,
    task: str | None,
    options: TableOptions,
    owner: str | None,
    held: Marks,
) -> Source:
    return load_table(path, label=label, seed=seed, task=task, options=options, held=held, owner=owner)


def _labels(raw: RawTable, label: str, options: TableOptions) -> list[str]:
    """The target columns; all columns that are named are there."""
    labels = [label] if label in raw.columns else list(names_in(label))
    special = (options.client_column, options.split_column, options.time_column, options.group_column)
    dropped = [name for name in options.drop if name not in raw.unread]  # which are left out in any case
    if labels == [LABEL] and not any(name.strip().lower() == LABEL for name in (*raw.columns, *raw.unread)):
        others = [name for name in raw.columns if name not in (*special, *dropped)]
        raise DataError(
            f"{raw.path} has no column '{LABEL}', which is taken where none is named; name what is predicted with "
            f"--target, one of {listed_columns(others)}"
        )
    check_columns(raw.path, raw.columns, [*labels, *filter(None, special), *dropped, *options.kinds], raw.unread)
    if options.client_column in labels:
        both = quoted(str(options.client_column))
        raise DataError(f"{raw.path}: the column {both} cannot be both the label and the client column")
    if twice := next((name for name in labels if labels.count(name) > 1), None):
        raise ConfigError(f"the target names the column {quoted(twice)} twice")
    for name in options.drop:
        if name in labels or name in special:
            raise ConfigError(f"the column {quoted(name)} cannot be dropped: it is the label or says whose a row is")
    return labels


def _as_in_run(
    raw: RawTable, about: TableSchema, rows: DividedRows, schema: TableSchema, options: TableOptions
) -> tuple[TableSchema, npt.NDArray[np.float32]]:
    """All rows as a run's inputs, and its schema for these rows."""
    here = schema.written(options.readings)
    with telling_ways(raw, here):
        x, strange = known_features(raw, here)
    about = replace(
        schema,
        targets=about.targets,
        task=about.task,
        class_names=about.class_names,
        target_decimals=about.target_decimals,
        client_column=about.client_column,
        few_rows=about.few_rows,
        split=about.split,
        missing_targets=about.missing_targets,
        asked=about.asked,
        beside=about.beside,
        notes=tuple(strange),
    )
    if about.scaling == "client":
        about = scale.by_clients(about, x, rows.test, rows.owners.parts())
    return about, x


def _learnt(
    raw: RawTable,
    about: TableSchema,
    rows: DividedRows,
    learnt_from: Marks,
    options: TableOptions,
    features: dict[str, Column],
    dropped: dict[str, str],
) -> tuple[TableSchema, npt.NDArray[np.float32]]:
    """All rows as inputs, and the schema that training rows say."""
    about, features = learn_features(raw, about, features, dropped, learnt_from)
    if options.bounds:
        about = scale.bounded(about, options)
    elif about.scaling in ("pooled", "client"):
        about = scale.centred(about, features, learnt_from)
    x = encode(about, features, raw.rows)
    if about.scaling == "pooled":
        about = scale.pooled(about, x[learnt_from])
    elif about.scaling == "client":
        about = scale.by_clients(about, x, ~learnt_from, rows.owners.parts())
    strange = []
    for known in about.features:
        column = features[known.name]
        strange += [] if known.offset else said_of_rounding(known.name, column)
        strange += said_of_doubles(known.name, column, raw.columns[known.name])
        strange += said_of_counting(known.name, column)
        strange += said_of_unseen(known, column, learnt_from, rows.test)
    return replace(about, notes=(*about.notes, *_said(about), *strange)), x


def _said(about: TableSchema) -> list[str]:
    """What became of the columns, where they are not all plain numbers."""
    kinds = [f"{len(about.of_kind(kind))} {kind}" for kind in ("number", "category", "date", "boolean")
             if about.of_kind(kind)]  # fmt: skip
    missing = [column.name for column in about.features if column.missing]
    if not about.dropped and not missing and len(about.of_kind("number")) == len(about.features):
        return []
    left = "".join(f"; left out: {quoted(name)} ({why})" for name, why in list(about.dropped.items())[:5])
    left += f" and {len(about.dropped) - 5} more" if len(about.dropped) > 5 else ""
    more = f"; cells are missing in {len(missing)} of them" if missing else ""
    whose = {"pooled": "; means and deviations are of all clients' training rows together"}.get(about.scaling, "")
    return [f"{len(about.features)} columns ({', '.join(kinds)}) make {len(about.inputs)} inputs{more}{left}{whose}"]


def _columns(options: TableOptions, rows: DividedRows, chosen: Marks) -> dict[str, Array]:
    if options.client_column is None:
        return {}
    return {options.client_column: np.array(rows.owners.names)[rows.owners.codes[chosen]]}
