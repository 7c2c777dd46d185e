"""The process of the judged program: it answers calls, and holds nothing that the program may not know."""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from commonground.papers.rolora.code_execution.confine import confine
from commonground.papers.rolora.code_execution.values import decode, encode, receive, send

__all__ = ["main"]


def main() -> None:
    """Confine this process, read the program, run it, and answer calls of its function until nobody asks.

    The one argument is JSON: the numbers of the two pipes, the limits, and whether to go on without confinement.
    """
    job = json.loads(sys.argv[1])
    calls, replies = os.fdopen(job["calls"], "rb"), os.fdopen(job["replies"], "wb")
    if confine(job["seconds"], job["memory"]) and job["confined"]:
        return  # the tests' process, which the caller believes, says why
    source, name = receive(calls)
    namespace: dict[str, Any] = {"__name__": "solution"}
    send(replies, _outcome(_run, source, namespace))
    while True:
        try:
            given = receive(calls)
        except EOFError:
            return
        send(replies, _outcome(_answer, namespace, name, given))


def _run(source: str, namespace: dict[str, Any]) -> None:
    exec(compile(source, "solution", "exec"), namespace)  # what this process is for


def _answer(namespace: dict[str, Any], name: str, given: Any) -> Any:
    arguments, keywords = map(decode, given)
    return encode(namespace[name](*arguments, **keywords))


def _outcome(call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """What came of a call: its value, or the built-in kinds of what it raised, the nearest first, and its text."""
    try:
        return {"value": call(*arguments)}
    except BaseException as error:
        kinds = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
        return {"raised": kinds, "text": str(error)[:200]}
