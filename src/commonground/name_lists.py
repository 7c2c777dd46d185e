"""Names of columns in one text, separated by commas; a name that holds a comma is put in double quotes, as in a CSV."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable

from commonground.quoting import escaped

__all__ = ["listed", "names_in", "option"]


def names_in(text: str | None) -> tuple[str, ...]:
    r"""The names in a text, without blanks around them.

    >>> names_in('age, "height, cm",it\'s "old"')
    ('age', 'height, cm', 'it\'s "old"')
    """
    try:
        parts = next(csv.reader(io.StringIO(text or "", newline=""), skipinitialspace=True), [])
    except csv.Error:  # no list as a CSV has them
        parts = (text or "").split(",")
    return tuple(name for part in parts if (name := part.strip()))


def listed(names: Iterable[str]) -> str:
    """Names as a text from which :func:`names_in` takes them.

    >>> listed(["age", "height, cm"])
    'age,"height, cm"'
    """
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def option(flag: str, *names: str) -> str:
    """An option with names as a shell takes it, for a message.

    >>> print(option("--drop", "age", "height, cm"))
    --drop 'age,"height, cm"'
    """
    return f"{flag} {escaped(shlex.quote(listed(names)), 400)}"
