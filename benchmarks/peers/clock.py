"""What rounds and tests cost: CPU seconds of a process with all it started, and wall seconds."""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil


class Enough(BaseException):
    """All rounds are done. Not an ``Exception``, so that no peer's own handler takes it."""


def cpu_seconds() -> float:
    """CPU seconds so far of this process and of all that it started, those that have ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


class Clock:
    """Laps of training and of tests, in turns: all that is no test belongs to the round.

    Args:
        rounds: how many shall count, after one that warms up.
        untrained: tests before the first round; they and what comes before them do not count.
    """

    def __init__(self, rounds: int, untrained: int = 0) -> None:
        self.rounds, self.skipped = rounds, 1 + untrained
        self.training: list[tuple[float, float]] = []
        self.evaluation: list[tuple[float, float]] = []
        self.accuracy: float | None = None
        self._since = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return cpu_seconds(), time.perf_counter()

    def _lap(self) -> tuple[float, float]:
        before, self._since = self._since, self._now()
        return self._since[0] - before[0], self._since[1] - before[1]

    def begins_untrained(self) -> None:
        """The peer tests once before its first round."""
        self.skipped += 1

    def trained(self) -> None:
        """A round of training ends here, and a test begins."""
        self.training.append(self._lap())

    def tested(self, accuracy: float | None = None) -> None:
        """The test ends here; a round begins, or all are done and :class:`Enough` is raised."""
        self.evaluation.append(self._lap())
        self.accuracy = accuracy
        if len(self.evaluation) == self.rounds + self.skipped:
            raise Enough

    def testing(self, function: Callable[..., Any], accuracy: Callable[[Any], float]) -> Callable[..., Any]:
        """A peer's function that tests all clients, timed.

        Args:
            function: it.
            accuracy: reads the share of right answers, from 0 to 1, off its result.
        """

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            self.trained()
            result = function(*args, **options)
            self.tested(accuracy(result))
            return result

        return timed

    def figures(self) -> dict[str, Any]:
        """Seconds of each round and test that counts."""
        kept = {"round": self.training[self.skipped :], "test": self.evaluation[self.skipped :]}
        figures: dict[str, Any] = {"accuracy": self.accuracy}
        for what, laps in kept.items():
            figures[f"{what}_cpu"] = [cpu for cpu, _ in laps]
            figures[f"{what}_wall"] = [wall for _, wall in laps]
        return figures
