"""Words as dates, in the ways of writing them that files have."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["DATE_LIKE", "ORDERS", "date_numbers", "month_first"]

_CLOCKS = ("", " %H:%M", " %H:%M:%S")
_HALVES = (" %I:%M %p", " %I:%M:%S %p")  # of the day

ORDERS = (
    *(f"%d.%m.%Y{clock}" for clock in _CLOCKS),
    *(f"%d/%m/%Y{clock}" for clock in (*_CLOCKS, *_HALVES)),
    *(f"%m/%d/%Y{clock}" for clock in (*_CLOCKS, *_HALVES)),
    *(f"%d-%m-%Y{clock}" for clock in _CLOCKS),
    *(f"%m-%d-%Y{clock}" for clock in _CLOCKS),
    *(f"%Y/%m/%d{clock}" for clock in _CLOCKS),
    *(f"%d.%m.%y{clock}" for clock in _CLOCKS),
    *(f"%d/%m/%y{clock}" for clock in _CLOCKS),
    *(f"%m/%d/%y{clock}" for clock in (*_CLOCKS, *_HALVES)),
    "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%d %b %Y %H:%M", "%d %b %Y %H:%M:%S",
)  # fmt: skip
"""Ways of writing a date, beside ISO 8601, which is tried first; of several that fit, the first is taken."""

DATE_LIKE = re.compile(
    r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}|\d{1,2}[- ][A-Za-z]{3,9}[- ]\d{4}|[A-Za-z]{3,9} \d{1,2}, \d{4}"
)
"""How dates begin."""

# 1.2.24 is as often a version or an address; with two digits each it is a day.
_SHORT_YEAR = re.compile(r"\d\d\.\d\d\.\d\d(\D|$)|\d{1,2}/\d{1,2}/\d\d(\D|$)")
_ZONE = re.compile(r"([T ]\d\d(?::?\d\d){0,2}(?:\.\d+)?)\s*(?:Z|[+-](?:[01]?\d|2[0-3])(?::?[0-5]\d)?)$")


def month_first(order: str) -> str:
    """An order of dates in which the day comes before the month with both in each other's place; empty for others."""
    return f"%m{order[2]}%d{order[5:]}" if order[:2] == "%d" and order[3:5] == "%m" else ""


def date_numbers(words: Sequence[str], order: str, *, instants: bool = False) -> npt.NDArray[np.float64]:
    """Words as days since 1970-01-01, NaN for those that are no dates so written. A time with a zone is what the clocks
    there show: midnight in Berlin begins the day that it begins there, as it does where no zone is written.

    Args:
        words: the words.
        order: ``ISO8601``, or as ``strptime`` has it (:data:`ORDERS`); of one with a time, a day alone is its midnight.
        instants: of times with a zone the moment in place of what clocks show, by which rows follow one another.
    """
    days = _days(words, order, instants)
    day, clock, _ = order.partition(" %H" if " %H" in order else " %I")
    if clock and np.isnan(days).any():
        left = np.flatnonzero(np.isnan(days))
        days[left] = _days([words[place] for place in left.tolist()], day, instants)
    return days


def _days(words: Sequence[str], order: str, instants: bool) -> npt.NDArray[np.float64]:
    """As :func:`date_numbers`, of words that are all written so."""
    import pandas as pd

    if not len(words):
        return np.empty(0)
    if "%y" in order:
        words = [word if _SHORT_YEAR.match(word) else "" for word in words]
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
