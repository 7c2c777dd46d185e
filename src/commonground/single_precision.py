"""Where single precision rounds away what numbers differ by."""

from __future__ import annotations

import numpy as np

__all__ = ["rounding_shows", "step_at"]

_STEPS = 50  # steps of single precision in a deviation below which rounding is felt


def step_at(size: float) -> float:
    """The step between single-precision numbers of a size."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.spacing(np.float32(abs(size))))


def rounding_shows(size: float, spread: float) -> bool:
    """Whether numbers of about this size that differ by about so much (their deviation) are told apart too coarsely.

    >>> rounding_shows(1.7e9, 50.0), rounding_shows(50.0, 50.0)
    (True, False)
    """
    return spread < _STEPS * step_at(size)
