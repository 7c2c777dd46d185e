"""What every part of the campaign shares: how it counts, when it ends, and how it calls the command.

A part is a file with ``campaign(seed: int, count: int, minutes: float) -> Tally``. It tries ``count`` different things,
each drawn from ``(seed, number)`` alone, so that one finding can be tried again by itself.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commonground.cli import main

__all__ = ["Outcome", "Tally", "call", "drawn", "ended", "tries"]

PATIENCE = 30.0  # seconds after Ctrl-C in which a command has to have ended


@dataclass(frozen=True)
class Tally:
    """What came of a part of the campaign.

    Attributes:
        tried: things that were tried.
        held: those after which all was as it should be.
        findings: a sentence for each that did not hold, with the number of the try; the same for everyone who tries it
            again, so no path of this machine is in it.
    """

    tried: int
    held: int
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What came of a command: its exit code (None: it did not end, not even by Ctrl-C), and what it said."""

    code: int | None
    out: str
    err: str

    def fault(self) -> str:
        """In what it broke the contract of all commands; empty if in nothing."""
        if self.code is None:
            return "it hung"
        if "Traceback" in self.err or self.code not in (0, 2, 130):
            return f"exit {self.code}: {self.err.strip().splitlines()[-1][:200] if self.err.strip() else ''}"
        lines = self.err.strip("\n").split("\n")
        if self.code == 2 and not self.out and not lines[-1].startswith("commonground: "):
            return f"exit 2 without a sentence: {lines[-1][:200]!r}"
        unseen = [c for c in self.err + self.out if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"]
        return f"it printed {unseen[0]!r} as it came" if unseen else ""


def tries(count: int, minutes: float) -> Iterator[int]:
    """The numbers 0 … count - 1, for as long as the time lasts; at least one."""
    end = time.monotonic() + 60 * minutes
    for number in range(count):
        if number and time.monotonic() > end:
            return
        yield number


def drawn(seed: int, number: int) -> np.random.Generator:
    """The draws of one try."""
    return np.random.default_rng([seed, number])


def call(args: Sequence[str], folder: Path, seconds: float) -> Outcome:
    """The command in a process of its own, in a folder; interrupted as by Ctrl-C when its time is over."""
    with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as err:
        child = mp.get_context("fork").Process(target=_command, args=(list(args), folder, out.fileno(), err.fileno()))
        child.start()
        code = ended(child, seconds)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="backslashreplace"))
    return Outcome(code, *texts)


def ended(child: mp.process.BaseProcess, seconds: float, send: Callable[[], None] | None = None) -> int | None:
    """A process's exit code, after Ctrl-C (or what ``send`` does) when its time is over; None if it did not end."""
    child.join(seconds)
    if child.is_alive():
        if send is not None:
            send()
        else:
            os.kill(child.pid or 0, signal.SIGINT)
        child.join(PATIENCE)
    if child.is_alive():
        os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()
        return None
    return child.exitcode


def _command(args: list[str], folder: Path, out: int, err: int) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the campaign itself runs in the background
    os.chdir(folder)
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
    try:
        code = main(args)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
