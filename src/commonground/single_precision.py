"""Where single precision rounds away what numbers differ by."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["TARGET_STEPS", "common_part", "in_digits", "rounding_shows", "step_at", "too_large"]

LARGEST_WHOLE = 2.0**24
_STEPS = 50  # steps of single precision in a deviation below which rounding is felt
TARGET_STEPS = 10_000
"""The same of targets: a good model errs by little of their deviation, and rounding is to be little beside that."""


def step_at(size: float) -> float:
    """The step between single-precision numbers of a size."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.spacing(np.float32(abs(size))))


def rounding_shows(size: float, spread: float, steps: int = _STEPS) -> bool:
    """Whether numbers of about this size that differ by about so much (their deviation) are told apart too coarsely:
    by fewer steps of single precision than these.

    >>> rounding_shows(1.7e9, 50.0), rounding_shows(50.0, 50.0)
    (True, False)
    """
    return spread < steps * step_at(size)


def too_large(size: float) -> bool:
    """Whether single precision rounds whole numbers of this size."""
    return abs(size) > LARGEST_WHOLE


def in_digits(value: float) -> str:
    """A number in the nine digits that tell single-precision numbers apart, or all digits before the point.

    >>> in_digits(0.1), in_digits(4197780659.0), in_digits(1e20)
    ('0.1', '4197780659', '1e+20')
    """
    return f"{value:.0f}" if 1e9 <= abs(value) < 1e15 else f"{value:.9g}"


def common_part(middle: float, size: float, spread: float) -> float:
    """What to take off numbers of a size and a deviation so that single precision tells the rest apart: near their
    middle, and a round number, so that some rows fewer give the same one.
    """
    unit = min(64 * step_at(size), 2.0 ** math.floor(math.log2(spread) + 17))
    return round(middle / unit) * unit
