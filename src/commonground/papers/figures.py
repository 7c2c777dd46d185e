"""The curves of a figure: values over x with their bands, from many seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from commonground.statistics import Numbers, Values, median_interval, student_interval

__all__ = ["Curve", "Figure", "mean_curve", "median_curve"]


@dataclass(frozen=True)
class Curve:
    """One line of a :class:`Figure`: means (or medians) over x with the band around them; equally long, all finite."""

    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def changed(self, change: Callable[[Sequence[float]], Sequence[float]]) -> Curve:
        """The line and its band after a change of their values."""
        low, high = (None if band is None else change(band) for band in (self.low, self.high))
        return Curve(self.x, change(self.mean), low, high)


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, measured.

    Attributes:
        x, y: labels of the axes.
        lines: by their names.
        log_x, log_y: logarithmic axes (all values positive).
        percent: y is a share, written in percent.
        reads: what lines and bands are, in a sentence.
    """

    x: str
    y: str
    lines: Mapping[str, Curve]
    log_x: bool = False
    log_y: bool = False
    percent: bool = False
    reads: str = "Lines are means, bands their 95 % intervals."


def mean_curve(x: Sequence[float], values: Numbers) -> Curve:
    """A curve of means with 95 % bands from values [seeds, len(x)]."""
    return _curve(x, student_interval(values))


def median_curve(x: Sequence[float], values: Numbers) -> Curve:
    """A curve of medians with bands of at least 95 % from values [seeds, len(x)]."""
    return _curve(x, median_interval(values))


def _curve(x: Sequence[float], interval: tuple[Values, Values, Values]) -> Curve:
    mean, low, high = (v.tolist() for v in interval)
    return Curve([float(v) for v in x], mean, low, high)
