"""Names in the order in which people expect them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commonground.data.arrays import Array

__all__ = ["numbered", "sorted_names"]


def sorted_names(values: Array) -> tuple[str, ...]:
    """The distinct values as text, sorted; as numbers when all of them are whole numbers ("2" before "10")."""
    names: list[str] = np.unique(values.astype(str)).tolist()
    try:
        return tuple(sorted(names, key=int))
    except ValueError:
        return tuple(names)


def numbered(names: Sequence[str]) -> dict[str, int]:
    """The place of each name, the first where it comes twice."""
    return {name: place for place, name in reversed(list(enumerate(names)))}
