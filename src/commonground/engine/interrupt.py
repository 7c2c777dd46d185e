"""Ctrl-C that ends a run between two steps, with a valid checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from commonground.errors import Interrupted

__all__ = ["StopFlag", "more_runs"]

SAME = 0.5  # seconds after a signal in which another one is taken for its echo


_more = 0  # how many of those who carry out several runs are at it


@contextmanager
def more_runs() -> Iterator[None]:
    """While open, a signal that comes after a run's last check is not for a run that is done, but for those to come:
    it is raised when the run has ended.
    """
    global _more
    _more += 1
    try:
        yield
    finally:
        _more -= 1


class StopFlag:
    """While in use, the first SIGINT or SIGTERM is remembered until :meth:`check`; a second one acts at once.

    What comes right after the first is the first again: ``timeout`` sends a signal to its child and to the whole group.

    Signals can only be caught in the main thread; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._asked: float | None = None  # when
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if _more and kind is None:
            self.check()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
        elif now > self._asked + SAME:
            raise Interrupted("stopped at once")

    def check(self) -> None:
        """Raise :class:`~commonground.errors.Interrupted` if a signal has come."""
        if self._asked is not None:
            raise Interrupted("stopped")
