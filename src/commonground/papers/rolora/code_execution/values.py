"""Plain values as lines of JSON between two processes that do not trust each other.

What is read is built anew from Python's own types, so that no method of the sender's classes is ever called here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import IO, Any

__all__ = ["decode", "encode", "receive", "send"]

MOST = 1 << 24  # bytes of a message


def encode(value: Any) -> Any:
    """A value as JSON, exact; an object of a subclass counts as one of the plain type.

    Raises:
        TypeError: it is of another type than None, bool, int, float, complex, str, bytes, bytearray, list, tuple, set,
            frozenset and dict, or holds such.
        RecursionError: it holds itself, or is nested too deeply.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["int", hex(value)]  # decimal digits are limited by Python, hexadecimal ones are not
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes" if isinstance(value, bytes) else "bytearray", value.hex()]
    if isinstance(value, dict):
        return ["dict", *([encode(key), encode(inner)] for key, inner in value.items())]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return [kind.__name__, *map(encode, value)]
    raise TypeError(f"a value of type {type(value).__name__} does not travel between processes")


_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "int": lambda rest: int(rest[0], 16),
    "float": lambda rest: float.fromhex(rest[0]),
    "complex": lambda rest: complex(*map(float.fromhex, rest)),
    "bytes": lambda rest: bytes.fromhex(rest[0]),
    "bytearray": lambda rest: bytearray.fromhex(rest[0]),
    "dict": lambda rest: {decode(key): decode(inner) for key, inner in rest},
    "list": lambda rest: list(map(decode, rest)),
    "tuple": lambda rest: tuple(map(decode, rest)),
    "set": lambda rest: set(map(decode, rest)),
    "frozenset": lambda rest: frozenset(map(decode, rest)),
}


def decode(given: Any) -> Any:
    """The value that :func:`encode` was given.

    Raises:
        ValueError: it is nothing that :func:`encode` writes.
    """
    if given is None or isinstance(given, (bool, str)):
        return given
    try:
        return _MAKERS[given[0]](given[1:])
    except (LookupError, TypeError, OverflowError) as error:
        raise ValueError(f"no value: {error}") from None


def send(pipe: IO[bytes], message: Any) -> None:
    """Write JSON as one line, at once."""
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Read a line of JSON.

    Raises:
        EOFError: the other side is gone.
        ValueError: it is no JSON, or longer than any answer may be.
    """
    line = pipe.readline(MOST)
    if not line.endswith(b"\n"):
        raise ValueError("an endless message") if len(line) == MOST else EOFError
    return json.loads(line)
