"""Names in the order in which people expect them."""

from __future__ import annotations

import numpy as np

from commonground.data.arrays import Array

__all__ = ["sorted_names"]


def sorted_names(values: Array) -> tuple[str, ...]:
    """The distinct values as text, sorted; as numbers when all of them are whole numbers ("2" before "10")."""
    names: list[str] = np.unique(values.astype(str)).tolist()
    try:
        return tuple(sorted(names, key=int))
    except ValueError:
        return tuple(names)
