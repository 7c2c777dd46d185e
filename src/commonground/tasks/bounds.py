"""What figures are called by, and what they can be."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Bounds", "Figures"]

Figures = dict[str, npt.NDArray[np.float64]]
"""Figures by name, one per client (or whatever was averaged over) on the leading axis."""


class Bounds(NamedTuple):
    """What a score of one sample can be.

    Attributes:
        low, high: smallest and largest value.
        whole: whether it is a whole number, as of a sample that is right or wrong.
        shape: [] for one number, [k] for k of them.
    """

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    shape: tuple[int, ...] = ()
