"""What a process of foreign code gives up before it runs any: by limits, Landlock and seccomp."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

from commonground.papers.rolora.code_execution.landlock import only_read
from commonground.papers.rolora.code_execution.seccomp import only_compute

__all__ = ["confine"]

_MOST_OUTPUT = 1 << 20  # bytes of a file, where files can be written at all
_OPEN_FILES = 64
_END_WITH_PARENT, _NO_NEW_RIGHTS = 1, 38  # prctl's PR_SET_PDEATHSIG and PR_SET_NO_NEW_PRIVS


def confine(seconds: int, memory: int) -> str:
    """Give up what foreign code may not have; it cannot be taken back.

    Everything the process still has to do for itself, opening its pipes above all, comes before.

    Args:
        seconds: of processor time.
        memory: bytes of address space.

    Returns:
        What could not be given up, in words; empty where all was.
    """
    _limit(seconds, memory)
    if sys.platform != "linux":
        return "only Linux confines processes in this way"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_NO_NEW_RIGHTS, 1, 0, 0, 0)  # without which an ordinary user may do neither of what follows
    missing = []
    try:
        only_read(libc, _readable())
    except OSError as error:
        missing.append(f"Landlock: {error.strerror}")
    try:
        only_compute(libc)
    except OSError as error:
        missing.append(f"seccomp: {error.strerror}")
    return ", ".join(missing)


def _limit(seconds: int, memory: int) -> None:
    # SIGXCPU at the first number, and SIGKILL at the second for who does not listen
    limits = [(resource.RLIMIT_CPU, seconds, seconds + 1), (resource.RLIMIT_AS, memory, memory)]
    limits += [
        (what, most, most)
        for what, most in (
            (resource.RLIMIT_FSIZE, _MOST_OUTPUT),
            (resource.RLIMIT_NOFILE, _OPEN_FILES),
            (resource.RLIMIT_NPROC, 0),  # binds all but an administrator, who is bound by seccomp
            (resource.RLIMIT_CORE, 0),
        )
    ]
    for what, soft, hard in limits:
        with contextlib.suppress(OSError, ValueError):  # a lower one is set already, or the system knows none
            resource.setrlimit(what, (soft, hard))


def _readable() -> list[str]:
    """Python's own modules and the libraries they load, and the empty folder the process is in."""
    own = [os.path.dirname(os.__file__), *(os.path.join(p, "lib") for p in (sys.base_prefix, sys.base_exec_prefix))]
    return [*own, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", os.getcwd()]
