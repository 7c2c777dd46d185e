"""Landlock: a process that can read below a few folders and touch no other file (Linux 5.13 or later)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Sequence

__all__ = ["only_read"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls of these numbers on every processor
_EVERY_RIGHT = (1 << 13) - 1  # of the first version; what later ones add is about calls that seccomp refuses
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_BELOW_PATH = 1  # the kind of rule


class _Rule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def only_read(libc: ctypes.CDLL, paths: Sequence[str]) -> None:
    """Leave this process nothing but to read what lies below some paths; those that do not exist are passed over.

    Raises:
        OSError: the kernel has no Landlock, or refuses.
    """
    handled = ctypes.c_uint64(_EVERY_RIGHT)
    rules = _call(libc, _CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    try:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                _allow(libc, rules, path)
        _call(libc, _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str) -> None:
    file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
        rule = _Rule(_READ_FILE | _READ_FOLDER if is_folder else _READ_FILE, file)
        _call(libc, _ADD_RULE, rules, _BELOW_PATH, ctypes.byref(rule), 0)
    finally:
        os.close(file)


def _call(libc: ctypes.CDLL, *arguments: object) -> int:
    result: int = libc.syscall(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
