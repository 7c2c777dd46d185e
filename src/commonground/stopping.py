"""Ctrl-C and SIGTERM while no run listens to them: the command ends with 130 and one line, at any moment.

It imports nothing of weight, since it has to be there before everything else: loading PyTorch takes seconds, and a
KeyboardInterrupt in the middle of it is a long traceback, or is swallowed and becomes an ImportError. So a signal ends
the process at once while a module is loaded, at the start or later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["end_while_loading", "is_command", "stops_raise"]


def end_while_loading() -> None:
    """From now on a signal ends this process at once, where nobody has decided otherwise."""
    if threading.current_thread() is threading.main_thread():
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is usual:  # not what was started to ignore it, in the background of a shell
                signal.signal(number, _end)


@contextmanager
def stops_raise() -> Iterator[None]:
    """While open, SIGTERM raises KeyboardInterrupt as Ctrl-C does (in the main thread alone).

    Where Python drops what is raised (in destructors and callbacks of weak references), it is raised again.
    """
    before, hook = {}, sys.unraisablehook
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in (_end, signal.SIG_DFL):
                before[number] = signal.signal(number, _raise)
        sys.unraisablehook = _raise_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def is_command() -> bool:
    """Whether this process was started as ``commonground`` or ``python -m commonground``."""
    called = next(iter(sys.argv), "")
    if called == "-m":  # as long as Python looks for the module
        return "commonground" in sys.orig_argv[: sys.orig_argv.index("-m") + 2]
    return os.path.basename(called) == "commonground"


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"commonground: interrupted\n")
    os._exit(130)


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _raise)
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # when Python has left the place at which nothing can be raised
    else:
        sys.__unraisablehook__(dropped)


def _raise(number: int, frame: FrameType | None) -> None:
    if _imports(frame):
        _end(number, frame)
    raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being loaded, which PyTorch is when a command needs it: nothing has begun yet then."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None
