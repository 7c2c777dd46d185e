"""Numbers of things in words, for messages and pages."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["between", "counted", "counted_between", "in_ranges"]


def counted(count: int, what: str) -> str:
    """A number of things, such as ``1 client`` or ``1,200 clients``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def counted_between(counts: Iterable[int], what: str) -> str:
    """Several numbers of things by the least and the most, such as ``2 to 5 rounds``."""
    several = sorted(counts)
    return f"{between(several)} {what}{'' if several[-1] == 1 else 's'}"


def between(counts: Iterable[int]) -> str:
    """Numbers by the least and the most, such as ``2 to 5``; one number if they are equal."""
    several = sorted(counts)
    low, high = several[0], several[-1]
    return f"{high:,}" if low == high else f"{low:,} to {high:,}"


def in_ranges(numbers: Iterable[int]) -> str:
    """Whole numbers, those in a row by the first and the last, such as ``0–2, 7``."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(f"{row[0]}–{row[-1]}" if len(row) > 1 else str(row[0]) for row in ranges)
