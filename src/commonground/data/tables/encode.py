"""Columns as a model's inputs, by scikit-learn's transformers: filled, marked as missing, one-hot, dates in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commonground.data.names import sorted_names
from commonground.data.tables.cells import Floats
from commonground.data.tables.kinds import Column
from commonground.data.tables.schema import ColumnSchema, TableSchema
from commonground.data.tables.spelling import spelt_like

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer

__all__ = ["MOST_CATEGORIES", "encode", "learn_columns", "transformer"]

MOST_CATEGORIES = 100  # of a column; rarer ones have zeros, as unseen ones have
_AT_ONCE = 1 << 16  # rows, so that what lies between the cells and the inputs stays small
_CYCLES = (("year", 365.2425), ("week", 7.0), ("day", 1.0))


def learn_columns(columns: Sequence[Column], training: npt.NDArray[np.bool_]) -> tuple[ColumnSchema, ...]:
    """What training rows say of each feature: its categories, whether it is ever missing, what fills it.

    The statistics are those that scikit-learn's transformers would learn from the same rows (medians, most frequent
    truths, categories), found column by column, which takes a tenth of the time.

    Args:
        columns: the features, of numbers, truths, dates and categories.
        training: which rows are training rows [N].
    """
    return tuple(_known(column, training) for column in columns)


def transformer(schema: TableSchema) -> ColumnTransformer:
    """The transformer that a schema describes, fitted without its training rows.

    Its statistics are those of the schema: a row of every column's fill and one that lacks what was missing have the
    same medians and the same missing columns.
    """
    return _fitted(schema.features)


@lru_cache(maxsize=32)  # a service is asked row by row, and fitting takes longer than all the rest
def _fitted(features: tuple[ColumnSchema, ...]) -> ColumnTransformer:
    rows = np.zeros((2, _width(features)))
    for place, column in zip(_places(features), features, strict=True):
        if column.kind != "category":
            rows[:, place] = column.fill, np.nan if column.missing else column.fill
    return _make(features).fit(rows)


def encode(schema: TableSchema, columns: Mapping[str, Column], rows: int) -> npt.NDArray[np.float32]:
    """The model's inputs before scaling, [rows, inputs] in the order of :attr:`TableSchema.inputs`.

    Args:
        schema: of the run.
        columns: read by name; columns that are no features are left alone.
        rows: how many there are.
    """
    made = transformer(schema)
    features = [columns[column.name] for column in schema.features]
    inputs = category_inputs(schema.features, features)
    offsets = np.array([column.offset for column in schema.of_kind("number", "date")])
    x = np.empty((rows, len(schema.inputs)), dtype=np.float32)
    for start in range(0, rows, _AT_ONCE):
        index = np.arange(start, min(rows, start + _AT_ONCE))
        found = made.transform(to_numbers(schema.features, features, inputs, index))
        if offsets.any():
            found[:, : len(offsets)] -= offsets
        x[index] = found
    return x


def unseen(column: ColumnSchema, read: Column) -> list[str]:
    """Words of a category column that have no input of their own."""
    assert read.cells is not None
    places = read.cells.places(column.categories, column.apart)
    told = zip(read.cells.words, read.cells.counts, places, strict=True)
    return [word for word, n, place in told if n and place < 0]


def _known(column: Column, training: npt.NDArray[np.bool_]) -> ColumnSchema:
    reading = column.reading
    plain = ColumnSchema(
        column.name, reading.kind, reading.decimal, reading.order, truths=column.truths, clocks=reading.clocks,
        affix=reading.affix or "",
    )  # fmt: skip
    if column.numbers is not None:
        values = column.numbers[training]
        there = values[~np.isnan(values)]
        low, high = (float(there.min()), float(there.max())) if len(there) else (None, None)
        times = reading.kind == "date" and bool((there % 1 != 0).any())
        fill = float(np.median(there)) if len(there) else 0.0
        if reading.kind == "boolean":
            fill = float(there.sum() > len(there) / 2)
        return replace(plain, missing=len(there) < len(values), fill=fill, times=times, low=low, high=high)
    assert column.cells is not None
    codes = column.cells.codes[training]
    counts = np.bincount(codes[codes >= 0], minlength=len(column.cells.words))
    words = [column.cells.words[i] for i in np.argsort(-counts, kind="stable") if counts[i]]
    often, rare = words[:MOST_CATEGORIES], words[MOST_CATEGORIES:]
    categories = sorted_names(np.array(often, dtype=np.str_)) if often else ()
    return replace(plain, categories=categories, apart=spelt_like(rare, categories), missing=bool((codes < 0).any()))


def _make(columns: Sequence[ColumnSchema]) -> ColumnTransformer:
    """The transformers, not fitted."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    places = _places(columns)

    def of(*kinds: str) -> list[int]:
        return [place for place, column in zip(places, columns, strict=True) if column.kind in kinds]

    def parts() -> list[int]:
        return [place + 1 + part for place, column in zip(places, columns, strict=True)
                for part in range(len(column.parts))]  # fmt: skip

    categories = [column for column in columns if column.kind == "category"]
    steps = [
        ("numbers", SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True),
         of("number", "date")),
        ("truths", SimpleImputer(strategy="most_frequent", add_indicator=True, keep_empty_features=True),
         of("boolean")),
        ("dates", SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True),
         parts()),
        ("categories", OneHotEncoder(
            categories=[np.arange(_inputs_of(column), dtype=np.float64) for column in categories],
            handle_unknown="ignore", sparse_output=False, dtype=np.float32),
         of("category")),
    ]  # fmt: skip
    return ColumnTransformer([step for step in steps if step[2]], verbose_feature_names_out=False)


def _inputs_of(column: ColumnSchema) -> int:
    return len(column.categories) + column.missing


def _places(columns: Sequence[ColumnSchema]) -> list[int]:
    """Where each column stands among :func:`to_numbers`; parts of a date follow it.

    The transformers are told columns by place: by name, scikit-learn looks for each of them among all.
    """
    return list(accumulate((1 + len(column.parts) for column in columns[:-1]), initial=0)) if columns else []


def _width(columns: Sequence[ColumnSchema]) -> int:
    return sum(1 + len(column.parts) for column in columns)


def category_inputs(known: Sequence[ColumnSchema], columns: Sequence[Column]) -> dict[str, Floats]:
    """Of each column of categories the input of every word, and last of a missing cell; −1 where there is none."""
    inputs = {}
    for column, read in zip(known, columns, strict=True):
        if column.kind == "category":
            assert read.cells is not None
            none = len(column.categories) if column.missing else -1
            places = read.cells.places(column.categories, column.apart)
            inputs[column.name] = np.array([*places, none], dtype=np.float64)
    return inputs


def to_numbers(
    known: Sequence[ColumnSchema], columns: Sequence[Column], inputs: Mapping[str, Floats], rows: Any
) -> Floats:
    """Rows as numbers: days and parts of dates, places of categories (−1 where it has no input), NaN where missing.

    Args:
        known, columns: the features, as the schema knows them and as they are read.
        inputs: of categories (:func:`category_inputs`).
        rows: which rows [N].

    Returns:
        [N, columns and, right after each date, its parts].
    """
    values = np.empty((len(rows), _width(known)))
    for place, column, read in zip(_places(known), known, columns, strict=True):
        if column.kind == "category":
            assert read.cells is not None
            values[:, place] = inputs[column.name][read.cells.codes[rows]]
            continue
        assert read.numbers is not None
        days = values[:, place] = read.numbers[rows]
        waves = [2 * np.pi * days / length for name, length in _CYCLES if name != "day" or column.times]
        for part in range(len(column.parts)):
            values[:, place + 1 + part] = (np.sin, np.cos)[part % 2](waves[part // 2])
    return values
