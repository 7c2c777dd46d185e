"""Processes that end with the one that started them, also if that is killed and can say nothing."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["end_with"]

LOOK = 0.2  # seconds between two looks


def end_with(parent: int) -> None:
    """End this process as soon as the one that started it, ``parent``, has ended; a thread looks for it.

    Nothing is finished before: what a run or a server keeps bears a kill at any moment.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)
