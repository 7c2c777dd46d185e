"""Numbers of things in words, for messages and pages."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["counted", "counted_between"]


def counted(count: int, what: str) -> str:
    """A number of things, such as ``1 client`` or ``1,200 clients``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def counted_between(counts: Iterable[int], what: str) -> str:
    """Several numbers of things by the least and the most, such as ``2 to 5 rounds``."""
    several = sorted(counts)
    low, high = several[0], several[-1]
    return counted(high, what) if low == high else f"{low:,} to {counted(high, what)}"
