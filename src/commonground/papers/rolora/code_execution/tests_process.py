"""The process of the tests, which asks the judged program's process and decides."""

from __future__ import annotations

import builtins
import json
import os
import sys
from typing import IO, Any

from commonground.papers.rolora.code_execution.confine import confine
from commonground.papers.rolora.code_execution.values import decode, encode, receive, send

__all__ = ["main"]


class Gone(BaseException):
    """The judged program's process ended, or no longer speaks as agreed; not to be caught by tests."""


class Candidate:
    """Stands for the judged function: a call is a question to the other process.

    Attributes:
        gone: whether the other process can no longer be asked, which no test outlives.
        out_of_memory: whether it ran out of memory.
    """

    def __init__(self, calls: IO[bytes], replies: IO[bytes]) -> None:
        self._calls, self._replies = calls, replies
        self.gone = self.out_of_memory = False

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the judged function gives for these.

        Raises:
            Exception: of the built-in kind nearest to what it raised.
            Gone: there is no answer.
        """
        return self.ask([encode(list(arguments)), encode(keywords)])

    def ask(self, question: Any) -> Any:
        """Send a message and read the answer to it."""
        if self.gone:
            raise Gone
        try:
            send(self._calls, question)
            answer = receive(self._replies)
            raised = answer.get("raised")
            value = None if raised is not None else decode(answer["value"])
            kinds, text = [str(kind) for kind in raised or ()], str(answer.get("text", ""))
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            self.gone = True
            raise Gone from None
        if raised is not None:
            self.out_of_memory |= "MemoryError" in kinds
            raise _error(kinds, text)
        return value


def _error(kinds: list[str], text: str) -> Exception:
    for name in kinds:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(text)
            except TypeError:  # some take more than a text
                continue
    return RuntimeError(text)  # SystemExit and the like, which would end the tests


def main() -> None:
    """Confine this process, run the tests that standard input holds, and write the verdict to its pipe.

    The one argument is JSON: the numbers of the three pipes, the limits, and whether to go on without confinement.
    """
    job = json.loads(sys.argv[1])
    calls, replies = os.fdopen(job["calls"], "wb"), os.fdopen(job["replies"], "rb")
    verdict = os.fdopen(job["verdict"], "wb")
    given = json.load(sys.stdin)
    missing = confine(job["seconds"], job["memory"])
    if missing and job["confined"]:
        send(verdict, ["unconfined", missing])
        return
    candidate = Candidate(calls, replies)
    try:
        _test(candidate, **given)
        said = "failed" if candidate.gone else "passed"
    except MemoryError:
        said = "out of memory"
    except BaseException:
        said = "failed"
    if said != "passed":
        said = "gone" if candidate.gone else "out of memory" if candidate.out_of_memory else said
    send(verdict, [said, ""])


def _test(candidate: Candidate, solution: str, entry_point: str, helpers: str, tests: str) -> None:
    """Send the solution, then run the helpers and the tests here, and ``check`` on the function there."""
    candidate.ask([solution, entry_point])
    namespace: dict[str, Any] = {"__name__": "tests"}
    exec(compile(helpers, "helpers", "exec"), namespace)
    namespace[entry_point] = candidate
    exec(compile(tests, "tests", "exec"), namespace)
    namespace["check"](candidate)
