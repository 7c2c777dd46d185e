"""Running generated code against tests, as HumanEval needs it: in a process of its own, with limits.

The limits (processor and wall time, memory, file sizes, open files, an empty folder and environment, a session of its
own that is ended as a whole) stop runaway programs. They are no sandbox: a program may still read files, use the
network and start or end processes with the user's rights. Nor do they protect the verdict: a program shares its
interpreter with its tests, and one that is written to deceive can report that they passed. So nothing here runs unless
the user asks for it; do so in a container or on a machine without network that holds nothing of value.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from commonground.errors import ConfigError

__all__ = ["Limits", "Verdict", "run_program"]

Verdict = Literal["passed", "failed", "out of time", "out of memory"]

_DONE = "commonground: every test passed"
_MOST_OUTPUT = 1 << 20  # bytes a program may write to a file
_OPEN_FILES = 64


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: of processor time, and twice as much by the clock.
        memory: bytes of address space.
    """

    seconds: int = 5
    memory: int = 1 << 30

    def __post_init__(self) -> None:
        if self.seconds < 1 or self.memory < 1 << 26:
            raise ConfigError(
                f"a program needs at least 1 second and 64 MiB; {self.seconds} s and {self.memory} bytes are given"
            )


def run_program(program: str, limits: Limits | None = None) -> Verdict:
    """Run a Python program that raises, or ends early, unless its tests pass.

    A program that leaves by itself before its last line (``sys.exit(0)``) has not passed.

    Args:
        program: the source: a generated function followed by its tests.
        limits: what it may use.
    """
    limits = limits or Limits()
    token = os.urandom(16).hex()
    read, write = os.pipe()
    source = f"{program}\n\nimport os as _os\n_os.write({write}, {f'{_DONE} {token}'.encode()!r})\n"
    with tempfile.TemporaryDirectory(prefix="commonground-code-") as folder, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", source],
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,  # a file: what the program starts may keep a pipe open for longer than it lives
            pass_fds=(write,),
            start_new_session=True,
            preexec_fn=_limited(limits),
        )
        try:
            process.wait(timeout=2 * limits.seconds)
        except subprocess.TimeoutExpired:
            return "out of time"
        finally:
            _end(process)
            os.close(write)
            said = _read(read)
        errors.seek(0)
        last = errors.read()[-4096:]
    if process.returncode == 0 and said == f"{_DONE} {token}".encode():
        return "passed"
    if process.returncode == -signal.SIGXCPU:
        return "out of time"
    return "out of memory" if b"MemoryError" in last else "failed"


def _read(pipe: int) -> bytes:
    """What is in a pipe, without waiting for more."""
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 4096)
    except BlockingIOError:
        return b""
    finally:
        os.close(pipe)


def _limited(limits: Limits) -> Callable[[], None]:
    def set_limits() -> None:
        # SIGXCPU at the first number, and SIGKILL at the second for who does not listen
        resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds + 1))
        for what, most in (
            (resource.RLIMIT_AS, limits.memory),
            (resource.RLIMIT_FSIZE, _MOST_OUTPUT),
            (resource.RLIMIT_NOFILE, _OPEN_FILES),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(what, (most, most))

    return set_limits


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it has started, which share a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
