"""Which numbers a setting can be: finite, and neither infinite nor zero once they are float32 as the weights are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from commonground.errors import ConfigError, shown

__all__ = ["LARGEST", "MOST", "MOST_SCHEDULED", "SMALLEST", "check_number", "check_numbers"]

LARGEST = 3.4028234663852886e38
"""The largest float32."""

SMALLEST = 1.1754943508222875e-38
"""The smallest normal float32; what is nearer to zero loses digits and may become zero."""

MOST = 1_000_000_000
"""The largest count; counts are kept as 32-bit numbers."""

MOST_SCHEDULED = 1 << 28
"""Samples in one call of training: their order is drawn at once and takes 8 bytes each, here 2 GiB."""


def check_number(value: float) -> None:
    """Refuse a number with which nothing can be computed in float32, and a count beyond all bounds.

    Raises:
        ValueError: says what is allowed.
    """
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        if abs(value) > MOST:
            raise ValueError(f"counts go up to {MOST:,}, since they are kept as 32-bit numbers")
    elif not math.isfinite(value):
        raise ValueError("must be a finite number")
    elif value != 0 and not SMALLEST <= abs(value) <= LARGEST:
        raise ValueError(f"must be a number that float32 can hold, 0 or {SMALLEST:.2g} to {LARGEST:.2g} in size")


def check_numbers(values: Mapping[str, Any], who: str) -> None:
    """Refuse settings by :func:`check_number`, those inside tuples and lists as well.

    Args:
        values: by name; what is no number is left to others.
        who: whose settings they are.

    Raises:
        ConfigError: names the first one out of range.
    """
    for name, value in values.items():
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, int | float):
                try:
                    check_number(number)
                except ValueError as error:
                    raise ConfigError(f"{who}: '{name}' is {shown(number)}: {error}") from None
