"""A few rounds and tests of a run, computed to be timed: in its own engine, and without a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from commonground.algorithms import Server, Tensors
from commonground.engine.backends.base import Engine, Which, payload_bytes
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.factory import make_engine
from commonground.engine.held_parts import bytes_of_parts
from commonground.engine.loop import Loop
from commonground.engine.observer import Silent
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup

__all__ = ["Clock", "Rehearsal", "Rehearsed"]

Clock = Callable[[], float]


@dataclass(frozen=True)
class Rehearsed:
    """A round that was computed.

    Attributes:
        seconds: it took, tests left out.
        up: bytes that each participant sent, the fewest and the most.
        down: bytes that each was sent, the fewest and the most, by a method whose clients remember nothing.
        row: its line of ``rounds.jsonl``.
        changed: shared tensors that changed in it, by a method whose clients remember them.
        remembered: bytes that the server keeps after it and does not send.
    """

    seconds: float
    up: tuple[int, int]
    down: tuple[int, int]
    row: Mapping[str, Any]
    changed: frozenset[str] = frozenset()
    remembered: int = 0


class Rehearsal(Loop):
    """A run of which a few rounds are computed, with whoever is wanted.

    Args:
        setup: of the run, or of a part of it.
        engine: by name.
        clock: tells the seconds.
    """

    def __init__(self, setup: Setup, engine: str, clock: Clock = time.perf_counter) -> None:
        super().__init__(setup, None, Silent())
        self.clock = clock
        began = clock()
        self.engine: Engine = make_engine(engine, setup)
        self.start_seconds = clock() - began
        self.scores: dict[Which, Scores] = {}
        self.first_fill = True  # whether what is computed once is yet to be counted
        self._wanted: list[int] = []
        self._up: list[int] = []
        self._down: list[int] = []

    def train(self, round: int, clients: Sequence[int]) -> Rehearsed:
        """One round of these clients, also one that was computed before."""
        self._wanted = list(clients)
        self.progress.heard[self.progress.heard >= round] = -1
        self.engine.again(round)
        began = self.clock()
        row = self._round(self.engine, round)
        seconds = self.clock() - began
        up, down = ([0], [0]) if self.setup.algorithm.pools else (self._up, self._down)
        changed = frozenset(name for name, last in self.progress.totals["changed"].items() if last == round)
        remembered = payload_bytes(self.progress.memory)
        return Rehearsed(seconds, (min(up), max(up)), (min(down), max(down)), row, changed, remembered)

    def test(self, clients: Sequence[int], kinds: Sequence[Which], *, detailed: bool = False) -> float:
        """Seconds of a test of these clients' models of each kind."""
        began = self.clock()
        for kind in kinds:
            found = self.engine.evaluate(clients, self.progress.shared, kind, self.progress.done, detailed=detailed)
            self.scores[kind] = found
        return self.clock() - began

    def fill(self, clients: Sequence[int]) -> float:
        """Seconds of what is computed once for these clients' rows and kept: hidden states of a frozen model."""
        began = self.clock()
        self.setup.keep_hidden("train", clients)
        return self.clock() - began

    def rows_of(self, clients: Sequence[int]) -> int:
        """Training rows of these clients."""
        return int(self.setup.data.train_sizes[np.asarray(clients, dtype=np.int64)].sum())

    # -- what a round of a run does otherwise ---------------------------------------------------------------------

    def _participants(self, round: int) -> list[int]:
        return self._wanted

    def _evaluate(self, engine: Engine, shared: Tensors, round: int) -> dict[Which, Scores]:
        return {which: scores for which, scores in self.scores.items() if which != "validation"}

    def _conclude(
        self, server: Server, answers: Sequence[ClientResult], round: int
    ) -> tuple[list[ClientResult], dict[int, Tensors], dict[str, float | Tensor | None]]:
        algorithm, shared = self.setup.algorithm, dict(self.progress.shared)
        clients = [answer.update.client for answer in answers]
        alone = [payload_bytes(algorithm.message_to(self._server(round), client)) for client in clients]
        results, replies, figures = super()._conclude(server, answers, round)
        self._up = [bytes_of_parts(algorithm, r.update.tensors, r.update.client) for r in results]
        self._down = [
            bytes_of_parts(algorithm, shared, client) + told + payload_bytes(replies.get(client, {}))
            for client, told in zip(clients, alone, strict=True)
        ]
        return results, replies, figures
