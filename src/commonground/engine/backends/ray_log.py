"""What a dead worker's replacement needs to be where it was: the rounds since its clients' state was last safe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from commonground.engine.backends.worker import Arrays

__all__ = ["LoggedRound", "RoundLog", "array_bytes"]

MOST_ROUNDS = 10
MOST_BYTES = 1 << 28


def array_bytes(arrays: Arrays) -> int:
    """Bytes of arrays."""
    return sum(value.nbytes for value in arrays.values())


@dataclass
class LoggedRound:
    """What a round's clients were sent: with their state before it, their state after it follows, bit for bit.

    Attributes:
        round: 1-based round.
        clients: who took part.
        shared: what all of them were sent.
        extra: what single clients were sent.
        replies: what the server overwrote of their state after the round.
    """

    round: int
    clients: Sequence[int]
    shared: Arrays
    extra: Mapping[int, Arrays]
    replies: Mapping[int, Arrays] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        alone = sum(array_bytes(arrays) for part in (self.extra, self.replies) for arrays in part.values())
        return array_bytes(self.shared) + alone


class RoundLog:
    """Rounds that count, in whose course a client's state has changed since it was last safe.

    A client's state is safe when the asking process has it: in memory, or in a checkpoint.

    Args:
        clients: number of clients.
    """

    def __init__(self, clients: int) -> None:
        self._safe = np.zeros(clients, dtype=np.int64)  # the round after which each client's state is safe
        self._rounds: list[LoggedRound] = []

    @property
    def full(self) -> bool:
        """Whether the states should become safe now: repeating so many rounds costs time, and keeping them memory."""
        return len(self._rounds) >= MOST_ROUNDS or sum(r.bytes for r in self._rounds) > MOST_BYTES

    def add(self, done: LoggedRound) -> None:
        """A further round counts."""
        self._rounds.append(done)

    def unsafe(self) -> list[int]:
        """Clients whose state has changed since it was last safe."""
        return sorted({c for r in self._rounds for c in r.clients if r.round > self._safe[c]})

    def make_safe(self, clients: Sequence[int], round: int) -> None:
        """The state of these clients after a round is safe now."""
        self._safe[list(clients)] = round
        self._rounds = [r for r in self._rounds if any(r.round > self._safe[c] for c in r.clients)]

    def start(self, round: int) -> None:
        """Everything is safe as it is after this round."""
        self._rounds = []
        self._safe.fill(round)

    def missed(self, clients: Collection[int]) -> list[tuple[LoggedRound, list[int]]]:
        """Rounds that some of these clients took part in since their state was safe, and who of them did."""
        found = [(r, [c for c in r.clients if c in clients and r.round > self._safe[c]]) for r in self._rounds]
        return [(r, members) for r, members in found if members]
