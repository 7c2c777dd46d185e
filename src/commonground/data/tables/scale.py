"""By what a table's numbers are scaled, and whose statistics that takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.tables.cells import rounded_away
from commonground.data.tables.kinds import Column
from commonground.data.tables.options import TableOptions
from commonground.data.tables.schema import TableSchema
from commonground.errors import ConfigError
from commonground.name_lists import option
from commonground.quoting import quoted
from commonground.single_precision import common_part, rounding_shows
from commonground.suggest import meant

__all__ = ["bounded", "by_clients", "centred", "deviations", "pooled"]

Rows = npt.NDArray[np.float32]

_MOST_NOTES = 3


def deviations(x: Rows) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of every input over rows [N, inputs]; 1 for inputs that do not vary."""
    mean, std = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def _numbers(schema: TableSchema) -> int:
    """The first inputs, which are numbers and days; the others are 0, 1 or between −1 and 1, and stay so."""
    return len(schema.of_kind("number", "date"))


def centred(schema: TableSchema, columns: Mapping[str, Column], training: npt.NDArray[np.bool_]) -> TableSchema:
    """Numbers that single precision would round away become inputs without what they have in common."""
    features = []
    for known in schema.features:
        numbers = columns[known.name].numbers
        offset = 0.0 if numbers is None else _in_common(numbers[training], known.fill)
        features.append(replace(known, offset=offset))
    return replace(schema, features=tuple(features))


def _in_common(numbers: npt.NDArray[np.float64], middle: float) -> float:
    lost = rounded_away(numbers)
    if lost is None:
        return 0.0
    return common_part(middle, float(np.nanmax(np.abs(numbers))), lost[1])


def pooled(schema: TableSchema, x_train: Rows) -> TableSchema:
    """Scaled by mean and deviation of all clients' training rows together."""
    count, others = _numbers(schema), len(schema.inputs) - _numbers(schema)
    mean, std = deviations(x_train[:, :count])
    return replace(schema, mean=(*mean, *[0.0] * others), std=(*std, *[1.0] * others))


def bounded(schema: TableSchema, options: TableOptions) -> TableSchema:
    """Scaled so that bounds that the user knows become −1 and 1; a missing number is taken to lie in the middle.

    Raises:
        ConfigError: a number has no bounds, or bounds have no number.
    """
    bounds = options.bounds
    numbers = schema.of_kind("number", "date")
    names = {column.name: None for column in numbers}  # in their order, and found at once
    for name in bounds:
        near = "" if name in names else meant(name, names)
        if near:
            raise ConfigError(f"the bounds name {quoted(name)}{near}, which is none of the numbers {', '.join(names)}")
    for name in names:
        if name not in bounds:
            without = option("--drop", name)
            raise ConfigError(f"the bounds lack the column {quoted(name)}; give all numbers some, or {without}")
    for name in bounds:
        if name not in names:
            raise ConfigError(f"the bounds name {quoted(name)}, which is none of the numbers {', '.join(names)}")
    middle = {name: (low + high) / 2 for name, (low, high) in bounds.items()}
    half = {name: (high - low) / 2 for name, (low, high) in bounds.items()}
    # By the bounds alone: nothing of the rows may show in it.
    offsets = {name: middle[name] if rounding_shows(middle[name], half[name]) else 0.0 for name in bounds}
    features = tuple(
        replace(
            column,
            fill=middle.get(column.name, column.fill),
            offset=offsets.get(column.name, 0.0),
            low=None,
            high=None,
        )
        for column in schema.features
    )
    others = len(schema.inputs) - len(numbers)
    return replace(
        schema,
        features=features,
        mean=(*(middle[name] - offsets[name] for name in names), *[0.0] * others),
        std=(*(half[name] for name in names), *[1.0] * others),
    )


def by_clients(
    schema: TableSchema, x: Rows, is_test: npt.NDArray[np.bool_], parts: Iterator[tuple[str, Any]]
) -> TableSchema:
    """Scale each client's rows by its own training rows, in place."""
    count = _numbers(schema)
    scales, notes = {}, list[str]()
    for name, rows in parts:
        mean, std = deviations(x[rows[~is_test[rows]]][:, :count])
        notes += [
            f"{column.name}: single precision rounds away what the numbers of client {quoted(name)} differ by, if they "
            "do; subtract what they have in common there"
            for column, m, s in zip(schema.of_kind("number", "date"), mean, std, strict=True)
            if rounding_shows(m, s)
        ]
        x[rows, :count] = (x[rows, :count] - np.array(mean)) / np.array(std)
        scales[name] = {"mean": list(mean), "std": list(std)}
    features = tuple(replace(column, low=None, high=None) for column in schema.features)
    more = [f"and {len(notes) - _MOST_NOTES} more such columns of clients"] if len(notes) > _MOST_NOTES else []
    told = (*schema.notes, *notes[:_MOST_NOTES], *more)
    return replace(schema, features=features, client_scales=scales, notes=told)


def scaled_as(schema: TableSchema, x: Rows, scale: Mapping[str, Sequence[float]]) -> None:
    """Scale a client's rows by what was learnt of its training rows, in place.

    Args:
        schema: of the run.
        x: encoded rows [N, inputs].
        scale: the client's ``mean`` and ``std``.
    """
    count = _numbers(schema)
    x[:, :count] = (x[:, :count] - np.array(scale["mean"])) / np.array(scale["std"])
