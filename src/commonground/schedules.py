"""How the learning rate changes over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from commonground.suggest import meant

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """A learning rate's course.

    Attributes:
        kind: ``constant``, ``cosine``, ``exponential`` or ``halve``.
        numbers: what the kind needs: of ``exponential`` what the rate is multiplied by in each round; of ``halve`` the
            shares of the run after which it is halved.
    """

    kind: str
    numbers: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """From a kind's name, a colon and its numbers.

        Raises:
            ValueError: there is no such schedule.

        >>> Schedule.parse("halve:0.5,0.75")
        Schedule(kind='halve', numbers=(0.5, 0.75))
        """
        kind, _, rest = text.partition(":")
        try:
            numbers = tuple(float(n) for n in rest.split(",")) if rest else ()
        except ValueError:
            numbers = (math.nan,)
        fits = {
            "constant": not numbers,
            "cosine": not numbers,
            "exponential": len(numbers) == 1 and 0 < numbers[0] <= 1,
            "halve": len(numbers) >= 1 and all(0 <= n <= 1 for n in numbers),
        }
        if not fits.get(kind, False):
            near = "" if kind in fits else meant(kind, fits)
            raise ValueError(
                f"'{text}'{near} is not one of constant, cosine, exponential:GAMMA (0 < GAMMA <= 1, such as "
                "exponential:0.99), halve:0.5,0.75 (shares of the rounds)"
            )
        return cls(kind, numbers)

    def factor(self, done: float, rounds: int) -> float:
        """What the rate is multiplied by.

        Args:
            done: share of the run that is done, from 0 to 1.
            rounds: of the run.
        """
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        if self.kind == "exponential":
            # The share of the run is exact to its last bits; the rounds of it are whole where a round begins.
            return float(self.numbers[0] ** round(done * rounds, 9))
        return 0.5 ** sum(done >= milestone for milestone in self.numbers)
