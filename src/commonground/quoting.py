"""Text that others wrote, made fit for a line of ours: cut, and without characters that act instead of being seen.

A client's error, a name in a message or a cell of a table may hold line breaks, a terminal's control sequences, or
characters that turn the direction of what follows. Shown as they come, they can imitate lines of this program.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["escaped", "folder_name", "quoted", "visible"]

LIMIT = 200
_ACTING = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, format and direction, halves of pairs, separators of lines


def escaped(text: str, limit: int = LIMIT) -> str:
    r"""A text in one line of at most ``limit`` characters and perhaps an ellipsis.

    Characters that are seen stay as they are. All others but the blank become Python's escapes (``\n``, ``\x1b``,
    ``\u202e``): control characters, bidirectional and zero-width ones, other blanks, halves of surrogate pairs, and
    whatever Unicode has not assigned.

    >>> escaped("two\nlines")
    'two\\nlines'
    """
    return _escaped(text, limit, "")


def quoted(text: str, limit: int = LIMIT) -> str:
    r"""As :func:`escaped`, between single quotes, which the text itself cannot close.

    >>> print(quoted("head' of client 'bob"))
    'head\' of client \'bob'
    """
    return f"'{_escaped(text, limit, chr(92) + chr(39))}'"


def visible(text: str) -> str:
    r"""A text of any length and its own lines, with every other character that acts escaped; blanks of any width stay.

    >>> visible("one\ntwo\x1b")
    'one\ntwo\\x1b'
    """
    for character in {c for c in text if unicodedata.category(c) in _ACTING and c != "\n"}:
        text = text.replace(character, character.encode("unicode_escape").decode("ascii"))
    return text


def _escaped(text: str, limit: int, marks: str) -> str:
    """The text with a backslash before each of ``marks``, cut where the next character would exceed the limit."""
    if len(text) <= limit and text.isprintable() and not any(mark in text for mark in marks):
        return text  # as almost every text is; a table of 100,000 names is all of that
    parts: list[str] = []
    room = limit
    for character in text[: limit + 1]:
        part = f"\\{character}" if character in marks else character
        if not character.isprintable():
            part = character.encode("unicode_escape").decode("ascii")
        if len(part) > room:
            return "".join(parts) + "…"
        parts.append(part)
        room -= len(part)
    return "".join(parts)


def folder_name(text: str) -> str:
    """A text as the name of a folder that every system takes: letters, digits and ``. + = _ -``.

    >>> folder_name("mine.py:FedMine, lr=0.1")
    'mine.py-FedMine-lr=0.1'
    """
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.")
