"""Locks of a process and of those that are forked from it.

A child that is forked while another thread has a lock would wait for a thread that it does not have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = ["ProcessLock"]


class ProcessLock:
    """A lock that is a fresh one in every forked child; used in a ``with`` statement.

    Args:
        kind: makes it: :class:`threading.Lock`, or :class:`threading.RLock` for one that its thread may take again.
    """

    def __init__(self, kind: Callable[[], Any] = threading.Lock) -> None:
        self._kind = kind
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = self._kind()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
