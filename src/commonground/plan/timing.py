"""How long a run takes: rounds and tests of it are computed, as many as fit into a few seconds, and scaled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from commonground.aggregation import parse_aggregate
from commonground.engine.backends.base import Which
from commonground.engine.backends.processes import default_workers
from commonground.engine.evaluation_plan import EvaluationPlan
from commonground.engine.sampling import sample_clients
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.plan.ledger import Kind, kind_of
from commonground.plan.memory import Memory, measured
from commonground.plan.parts import shortened, work_of
from commonground.plan.rehearsal import Clock, Rehearsal, Rehearsed

__all__ = ["TimedRun", "Timing"]

BUDGET = 4.0  # seconds for the rounds of each kind, and for tests, beyond short ones
SHORT = 2  # mini-batches of a client in the first, short rounds
REPEATED = 4  # rounds of a kind, if they are quick
LOOKED_AT = 200  # rounds whose participants are looked at; the others are taken to have as much to do


@dataclass
class TimedRun:
    """What was found out of a run by computing a part of it.

    Attributes:
        start: seconds for the engine, and for what is computed, loaded or compiled once.
        rounds: seconds of training in all rounds.
        tests: seconds of the tests during training.
        end: seconds of the last test, where the rounds' tests are of a panel.
        rehearsed: a round of each kind.
        moved: shared tensors that the first round changes, by a method whose clients remember them.
        participants: who took part in it.
        batches: mini-batches of each client in it; None for all.
        memory: what was met.
    """

    start: float = 0.0
    rounds: float = 0.0
    tests: float = 0.0
    end: float = 0.0
    rehearsed: dict[Kind, Rehearsed] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()
    participants: int = 0
    batches: int | None = None
    memory: Memory = field(default_factory=Memory)

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.start + self.rounds + self.tests + self.end


class Timing:
    """Computes a part of a run and scales it.

    Args:
        setup: of the run; its model's tensors are overwritten, as in training.
        engine: by name, none that chooses.
        clock: tells the seconds.
    """

    def __init__(self, setup: Setup, engine: str, clock: Clock = time.perf_counter) -> None:
        self.setup, self.engine, self.clock, self.plan = setup, engine, clock, EvaluationPlan(setup)
        shared_out = engine in ("processes", "ray") and not setup.algorithm.pools
        self.workers = min(setup.config.workers or default_workers(), setup.data.clients) if shared_out else 1
        self.kinds: dict[Kind, list[int]] = {}
        for round in range(1, setup.config.rounds + 1):
            self.kinds.setdefault(kind_of(setup, round), []).append(round)
        self.found = TimedRun()
        self._excess: dict[Kind, float] = {}  # seconds that the first round of a kind takes longer than the next
        self.scores: dict[Which, Scores] = {}  # of some clients

    def measure(self) -> TimedRun:
        """Short rounds first, which tell how much more can be afforded."""
        first = self._participants(1)
        chosen, batches = self._chosen(first, self._short_rounds())
        self.found.participants, self.found.batches = len(chosen), batches
        part = self.setup if batches is None else shortened(self.setup, batches)
        rehearsal = Rehearsal(part, self.engine, self.clock)
        self.found.start += rehearsal.start_seconds
        try:
            with measured(self.found.memory, self.setup.device):
                self._tests(rehearsal)
                for kind, numbers in self.kinds.items():
                    self._rounds(rehearsal, kind, numbers, None if len(chosen) == len(first) else chosen)
        finally:
            rehearsal.engine.close()
        return self.found

    def _participants(self, round: int) -> list[int]:
        clients = self.setup.data.clients
        return list(range(clients)) if self.setup.algorithm.pools else sample_clients(self.setup.config, clients, round)

    def _short_rounds(self) -> float:
        """A few clients' first mini-batches in rounds of each kind, twice; the seconds of one.

        What the first takes longer is loaded or compiled once in a run.
        """
        # A robust mean needs more clients than a few, and of equal tensors makes others by its last digits.
        plain = replace(self.setup, config=self.setup.config.model_copy(update={"aggregate": "mean"}))
        part, few, pace = shortened(plain, SHORT), self._participants(1)[: self.workers], 0.0
        rehearsal = Rehearsal(part, self.engine, self.clock)
        try:
            for kind, numbers in self.kinds.items():
                cold, warm = (rehearsal.train(numbers[0], few) for _ in range(2))
                self.found.rehearsed[kind] = warm
                if numbers[0] == 1:
                    self.found.moved = frozenset(cold.changed)
                self._excess[kind] = max(0.0, cold.seconds - warm.seconds)
                self.found.start += self._excess[kind]
                pace = max(pace, warm.seconds / work_of(part, few, self.workers))
        finally:
            rehearsal.engine.close()
        return pace

    def _chosen(self, clients: Sequence[int], pace: float) -> tuple[list[int], int | None]:
        """Whose round is computed to be timed, and how many mini-batches of each (None: all)."""
        least = parse_aggregate(self.setup.config.aggregate).least()
        affordable, few = BUDGET / max(pace, 1e-9), list(clients[: max(self.workers, least)])
        if work_of(self.setup, clients, self.workers) <= affordable:
            return list(clients), None
        alone = work_of(self.setup, few, self.workers)
        if self.setup.algorithm.pools or alone > affordable:
            return (list(clients) if self.setup.algorithm.pools else few), max(SHORT, int(affordable))
        return list(clients[: self.workers * max(1, int(affordable / alone))]), None

    def _rounds(self, rehearsal: Rehearsal, kind: Kind, numbers: list[int], few: list[int] | None) -> None:
        """Some rounds of a kind, and what all of them will take by these."""
        paces: list[float] = []
        spent, filling, filled = 0.0, 0.0, 0
        for number in numbers:
            clients = few or self._participants(number)
            filling += rehearsal.fill(clients)
            filled += rehearsal.rows_of(clients)
            done = self.found.rehearsed[kind] = rehearsal.train(number, clients)
            # Processes are new, and theirs is a first round again, whose excess is counted already.
            again = self._excess[kind] if self.workers > 1 and not paces else 0.0
            seconds = max(done.seconds / 2, done.seconds - again)
            paces.append(seconds / work_of(rehearsal.setup, clients, self.workers))
            spent += done.seconds
            if len(paces) == REPEATED or spent + done.seconds > BUDGET:
                break
        seen = numbers[:LOOKED_AT]
        work = sum(work_of(self.setup, self._participants(number), self.workers) for number in seen)
        self.found.rounds += float(np.median(paces)) * work * len(numbers) / len(seen)
        if self.setup.folds and rehearsal.first_fill:
            self.found.start += filling / filled * self._ever_trained_on()
            rehearsal.first_fill = False

    def _ever_trained_on(self) -> int:
        """Training rows of all clients who ever take part."""
        ever = {client for round in range(1, self.setup.config.rounds + 1) for client in self._participants(round)}
        return int(self.setup.data.train_sizes[sorted(ever)].sum())

    def _tests(self, rehearsal: Rehearsal) -> None:
        """A test of some clients, or of the whole panel where that is quick, and what all tests will take by it."""
        plan, sizes, panel = self.plan, self.setup.data.test_sizes, list(self.plan.panel)
        rows = float(sizes[panel].sum())
        few = panel[: 1 + int(np.searchsorted(np.cumsum(sizes[panel]), 512 * self.workers))]
        cold = rehearsal.test(few, plan.kinds, detailed=True)  # loads, compiles, fills
        self.scores = dict(rehearsal.scores)
        warm = rehearsal.test(few, plan.kinds)
        pace, scale = warm / float(sizes[few].sum()), 1.0
        if len(few) < len(panel) and self.setup.folds:
            scale = rows / float(sizes[few].sum())
        self.found.start += max(0.0, cold - warm) * scale
        if len(few) < len(panel):
            share = min(1.0, BUDGET / max(pace * rows, 1e-9))
            more = panel[: max(len(few), int(len(panel) * share))]
            pace = rehearsal.test(more, plan.kinds) / float(sizes[more].sum())
        each = pace * rows
        if plan.validated:
            some = list(plan.validated)[: len(few)]
            each += rehearsal.test(some, ["validation"]) * len(plan.validated) / len(some)
        config = self.setup.config
        self.found.tests = each * sum(plan.is_due(round) for round in range(1, config.rounds + 1))
        if not plan.covers_everyone:
            detail = rehearsal.test(few, plan.kinds, detailed=True) / float(sizes[few].sum())
            self.found.end = detail * float(sizes[np.asarray(plan.finals)].sum())
