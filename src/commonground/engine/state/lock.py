"""One process at a time: in a run's folder, or at anything that a file stands for."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from commonground.access import reason
from commonground.errors import BusyError, RunError
from commonground.existing import check_folder

__all__ = ["is_free", "locked", "locked_file"]

LOOK = 0.2  # seconds between two looks for whether a folder is free

_held: set[int] = set()


def _let_go() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


# A worker lets go of its parent's folder at once: after a SIGKILL it may outlive the parent by a client's training.
os.register_at_fork(after_in_child=_let_go)


@contextmanager
def locked(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Keep other processes from training in a folder meanwhile; a process that dies lets go of it.

    Args:
        path: the folder; it is made if it is not there, and removed again if nothing was written.
        wait: seconds for which another process that has it is waited for.

    Raises:
        BusyError: another process has it.
        RunError: the path cannot become a folder.
    """
    check_folder(path)
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise RunError(f"the folder '{path}' cannot be written: {reason(error, path)}") from None
    try:
        until = time.monotonic() + wait
        while not _lock(descriptor):
            if time.monotonic() >= until:
                raise BusyError(f"another process is training in '{path}'; choose another --out")
            time.sleep(LOOK)
        _held.add(descriptor)
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)
        if made:
            with suppress(OSError):
                path.rmdir()


@contextmanager
def locked_file(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes, and this one, from what a file stands for. It is there meanwhile; what a process that died
    has left of it locks nobody out.

    Where a file system has no locks, there is none.

    Args:
        path: the file, in a folder that is made if it is not there.
        wait: until whoever has it lets go of it; without a limit.

    Raises:
        BusyError: another one has it.
        RunError: it cannot be made.
    """
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunError(f"'{path}' cannot be written: {reason(error, path)}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            raise BusyError(f"another process has '{path}'") from None
        except OSError:
            break  # a file system without locks
        if _is(descriptor, path):
            break
        os.close(descriptor)  # who had it has removed it meanwhile
    _held.add(descriptor)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # before others can have it
        _held.discard(descriptor)
        os.close(descriptor)


def _is(descriptor: int, path: Path) -> bool:
    """Whether a file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def is_free(path: Path, wait: float = 0.0) -> bool:
    """Whether no process trains in a folder, or none does any more before ``wait`` seconds are over.

    Raises:
        RunError: the path cannot become a folder.
    """
    try:
        with locked(path, wait=wait):
            return True
    except BusyError:
        return False


def _lock(descriptor: int) -> bool:
    """Whether nobody else has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True
