"""What every part of the campaign shares: how it counts, and when it ends.

A part is a file with ``campaign(seed: int, count: int, minutes: float) -> Tally``. It tries ``count`` different things,
each drawn from ``(seed, number)`` alone, so that one finding can be tried again by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["Tally", "drawn", "tries"]


@dataclass(frozen=True)
class Tally:
    """What came of a part of the campaign.

    Attributes:
        tried: things that were tried.
        held: those after which all was as it should be.
        findings: a sentence for each that did not hold, with the number of the try; the same for everyone who tries it
            again, so no path of this machine is in it.
    """

    tried: int
    held: int
    findings: tuple[str, ...]


def tries(count: int, minutes: float) -> Iterator[int]:
    """The numbers 0 … count - 1, for as long as the time lasts; at least one."""
    end = time.monotonic() + 60 * minutes
    for number in range(count):
        if number and time.monotonic() > end:
            return
        yield number


def drawn(seed: int, number: int) -> np.random.Generator:
    """The draws of one try."""
    return np.random.default_rng([seed, number])
