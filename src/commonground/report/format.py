"""Numbers as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from commonground.tasks import Metric
from commonground.tasks.headline import in_figures
from commonground.terminal import human_bytes

__all__ = ["Unit", "number", "show", "show_alike", "slug", "unit_of", "unit_of_change"]

Unit = Literal["percent", "points", "value", "change", "bytes", "seconds", "integer", "number", "p"]
"""What a number counts: ``percent`` is a share (0.98), ``points`` a difference of shares, ``value`` a metric that is
none, ``change`` a difference of such, ``p`` a probability.
"""

MOST_DECIMALS = 3
"""Of numbers with four digits: numbers below 1 need more, and zeros behind the large ones beside them say nothing."""


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
        return f"{100 * count:.1f} %"
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


def slug(title: str) -> str:
    """A title as a file's name."""
    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
