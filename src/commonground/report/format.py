"""Numbers as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from commonground.tasks import Metric
from commonground.tasks.headline import in_figures, in_percent
from commonground.terminal import human_bytes

__all__ = [
    "FormattedFloat",
    "Unit",
    "number",
    "show",
    "show_alike",
    "show_with_interval",
    "slug",
    "unit_of",
    "unit_of_change",
]

Unit = Literal["percent", "points", "value", "change", "bytes", "seconds", "integer", "number", "p"]
"""What a number counts: ``percent`` is a share (0.98), ``points`` a difference of shares, ``value`` a metric that is
none, ``change`` a difference of such, ``p`` a probability.
"""

MOST_DECIMALS = 3
"""Of numbers with four digits: numbers below 1 need more, and zeros behind the large ones beside them say nothing."""

FIGURES, MOST_PLACES = 4, 6
"""Digits of a mean beside its interval, and decimals beyond which it is written with an exponent."""


def unit_of(metric: Metric) -> Unit:
    """Of a metric's values."""
    return "percent" if metric.percent else "value"


def unit_of_change(metric: Metric) -> Unit:
    """Of differences of a metric's values."""
    return "points" if metric.percent else "change"


def number(value: Any) -> float | None:
    """A finite number, or None for anything else (``null``, ``NaN``, text, a truth value)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def show(value: Any, unit: Unit = "number") -> str:
    """A number with its unit, a dash where there is none."""
    count = number(value)
    if count is None:
        return "–"
    if unit == "percent":
        return f"{in_percent(count)} %"
    if unit == "points":
        return f"{100 * count:+.1f}".replace("-", "−")
    if unit == "value":
        return in_figures(count).replace("-", "−")
    if unit == "change":
        return in_figures(count, 3, sign="+").replace("-", "−")
    if unit == "bytes":
        return human_bytes(count)
    if unit == "seconds":
        return _duration(count)
    if unit == "integer":
        return f"{count:,.0f}"
    if unit == "p":
        return "< 0.001" if count < 0.001 else f"{count:.3f}"
    return f"{count:,}" if isinstance(count, int) else f"{count:.4g}"


def show_alike(values: Sequence[Any]) -> list[str]:
    """Numbers below each other: with equally many decimals, unless small ones beside large ones need more."""
    texts = [show(value) for value in values]
    counts = [(number(value), text) for value, text in zip(values, texts, strict=True)]
    decimals = [len(text.partition(".")[2]) for count, text in counts if isinstance(count, float)]
    if not decimals or max(decimals) > MOST_DECIMALS or any("e" in text for _, text in counts):
        return texts
    return [f"{count:.{max(decimals)}f}" if isinstance(count, float) else text for count, text in counts]


class FormattedFloat(float):
    """A measured number beside the text that it is read as; ``str`` gives the text."""

    text: str

    def __new__(cls, value: float, text: str) -> FormattedFloat:
        """A number and its text."""
        made = super().__new__(cls, value)
        made.text = text
        return made

    def __str__(self) -> str:
        """As it is read."""
        return self.text


def show_with_interval(value: Any, low: Any, high: Any) -> tuple[str, str, str]:
    """A mean and the two ends of its interval with equally many decimals: as many as the interval leaves meaning, which
    is to say that half its width has two digits.

    Never more than make four digits of the largest of them, unless an end would read as 0 that is not. Of numbers that
    would need more than six decimals the texts have three digits and an exponent; without an interval a number has two
    decimals, or three digits where that is more. For example ``-4.10, -4.56, -3.64`` and ``-160, -285, -30``.
    """
    mean, least, most = number(value), number(low), number(high)
    if mean is None:
        return show(None), show(low), show(high)
    if least is None or most is None:
        return _rounded(mean, 2 if abs(mean) >= 0.1 or mean == 0 else 2 - _power(mean)), show(low), show(high)
    ends = (least, most)
    half, largest = (most - least) / 2, max(map(abs, (mean, least, most)))
    wanted = 1 - _power(half) if half else 2
    decimals = max(0, min(wanted, FIGURES - 1 - _power(largest)))
    while decimals < MOST_PLACES and any(end and not round(end, decimals) for end in ends):
        decimals += 1
    return _rounded(mean, decimals), _rounded(least, decimals), _rounded(most, decimals)


def slug(title: str) -> str:
    """A title as a file's name."""
    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")


def _power(value: float) -> int:
    """Of ten: 1 of 20, -3 of 0.005."""
    return math.floor(math.log10(abs(value))) if value else 0


def _rounded(value: float, decimals: int) -> str:
    if decimals > MOST_PLACES:
        return f"{value:.2e}"
    return f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0: no "-0.0"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
