"""Words as dates, in the ways of writing them that files have."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["DATE_LIKE", "ORDERS", "date_numbers"]

ORDERS = (
    "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S",
    "%d/%m/%Y", "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S",
    "%d-%m-%Y", "%Y/%m/%d", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S",
)  # fmt: skip
"""Ways of writing a date, beside ISO 8601, which is tried first."""

DATE_LIKE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}")
_ZONE = re.compile(r"([T ]\d\d(?::?\d\d){0,2}(?:\.\d+)?)\s*(?:Z|[+-](?:[01]?\d|2[0-3])(?::?[0-5]\d)?)$")


def date_numbers(words: Sequence[str], order: str, *, instants: bool = False) -> npt.NDArray[np.float64]:
    """Words as days since 1970-01-01, NaN for those that are no dates so written. A time with a zone is what the clocks
    there show: midnight in Berlin begins the day that it begins there, as it does where no zone is written.

    Args:
        words: the words.
        order: ``ISO8601``, or as ``strptime`` has it (:data:`ORDERS`).
        instants: of times with a zone the moment in place of what clocks show, by which rows follow one another.
    """
    import pandas as pd

    if not len(words):
        return np.empty(0)
    try:
        if not instants and (order == "ISO8601" or order.endswith("%z")):
            local = [_ZONE.subn(r"\1", word) for word in words]
            words = [word if zone or order == "ISO8601" else "" for word, zone in local]  # where %z asks for a zone
            order = order.removesuffix("%z").rstrip()
        times = pd.to_datetime(pd.Series(list(words), dtype="str"), format=order, utc=True, errors="coerce")
    except (ValueError, TypeError, OverflowError):
        return np.full(len(words), np.nan)
    # By microseconds: nanoseconds end in the year 2262.
    days = times.dt.as_unit("us").astype("int64").to_numpy() / (24 * 3600 * 1e6)
    return np.where(times.isna().to_numpy(), np.nan, days)
