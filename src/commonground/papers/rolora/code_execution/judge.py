"""The judge's own process: it starts the two others, and believes the tests' alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from commonground.errors import ConfigError

__all__ = ["Limits", "Verdict", "require_confinement", "run_program"]

Verdict = Literal["passed", "failed", "out of time", "out of memory"]

# Modules of this package alone are needed there: its parents, PyTorch with them, are not imported but stood in for.
_PACKAGE = __name__.rpartition(".")[0]
_START = """
import sys, types
names, folder, name = {names!r}, {folder!r}, {name!r}
for parent in names:
    sys.modules[parent] = types.ModuleType(parent)
sys.modules[names[-1]].__path__ = [folder]
__import__(names[-1] + "." + name, fromlist=["main"]).main()
"""


@dataclass(frozen=True)
class Limits:
    """What a program may use, and its tests as much again.

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


def run_program(
    solution: str,
    tests: str,
    entry_point: str,
    *,
    helpers: str = "",
    limits: Limits | None = None,
    confined: bool = True,
) -> Verdict:
    """Whether a generated function passes its tests; neither runs in this process.

    Args:
        solution: source that is not trusted; it defines the function.
        tests: source that defines ``check(candidate)``, which raises unless the candidate is right.
        entry_point: the function's name; tests may use it as well.
        helpers: source that the tests may use, run beside them (HumanEval's prompt, some of which define functions).
        limits: what each of the two processes may use.
        confined: refuse to run where the kernel cannot confine the processes (the package's docstring says how).

    Raises:
        ConfigError: they cannot be confined here.
    """
    limits = limits or Limits()
    job = {"seconds": limits.seconds, "memory": limits.memory, "confined": confined}
    text = {"solution": solution, "entry_point": entry_point, "helpers": helpers, "tests": tests}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="commonground-code-"))
        given = stack.enter_context(tempfile.TemporaryFile())
        given.write(json.dumps(text).encode())
        given.seek(0)
        verdict, write_verdict = _pipe(stack)
        with (
            contextlib.ExitStack() as theirs
        ):  # closed here as soon as both have theirs, so that each sees the other end
            (read_calls, write_calls), (read_replies, write_replies) = _pipe(theirs), _pipe(theirs)
            judged = {"calls": read_calls, "replies": write_replies}
            asking = {"calls": write_calls, "replies": read_replies, "verdict": write_verdict}
            judge = stack.enter_context(_started("solution_process", judged, job, folder, subprocess.DEVNULL))
            tests_process = stack.enter_context(_started("tests_process", asking, job, folder, given))
        try:
            tests_process.wait(timeout=2 * limits.seconds)
        except subprocess.TimeoutExpired:
            return "out of time"
        said, why = _read(verdict)
        if said == "unconfined":
            raise ConfigError(
                f"programs cannot be confined here ({why}), so they are not run; where nothing of value is in reach, "
                "run them all the same with --set confined=false"
            )
        if said == "gone":
            with contextlib.suppress(subprocess.TimeoutExpired):
                judge.wait(timeout=1)  # it closed its pipes, and may not be quite ended
        if signal.SIGXCPU in (-(judge.returncode or 0), -(tests_process.returncode or 0)):
            return "out of time"
        return said if said in ("passed", "out of memory") else "failed"


@cache
def require_confinement() -> None:
    """Refuse early what :func:`run_program` would refuse later.

    Raises:
        ConfigError: processes cannot be confined here.
    """
    run_program("def f():\n    return 1\n", "def check(f):\n    assert f() == 1\n", "f", limits=Limits(seconds=30))


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """The reading and the writing end of a new pipe, closed with the stack."""
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


@contextlib.contextmanager
def _started(
    name: str, pipes: dict[str, int], job: dict[str, Any], folder: str, given: int | IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this package, with nothing of ours but some pipes; it and what it started are ended afterwards."""
    parts = _PACKAGE.split(".")
    names = [".".join(parts[: i + 1]) for i in range(len(parts))]
    start = _START.format(names=names, folder=str(Path(__file__).parent), name=name)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", start, json.dumps(pipes | job)],
        cwd=folder,
        env={"HOME": folder},
        stdin=given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(pipes.values()),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(pipe: int) -> tuple[Any, Any]:
    """The verdict, or nothing where the tests' process ended without one."""
    os.set_blocking(pipe, False)
    try:
        said, why = json.loads(os.read(pipe, 4096))
    except (BlockingIOError, ValueError):
        return "", ""
    return said, why
