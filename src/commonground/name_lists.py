"""Names of columns in one text, separated by commas; a name that holds a comma is put in double quotes, as in a CSV."""

from __future__ import annotations

import csv
import io
import shlex
import unicodedata
from collections.abc import Iterable

from commonground.errors import ConfigError
from commonground.quoting import escaped, quoted

__all__ = ["listed", "names_in", "option", "plain_name"]


def plain_name(name: str) -> str:
    """A name without blanks around it, its letters with marks as one character each (Unicode's NFC): ``größe`` is one
    name, whichever of both ways of writing ``ö`` a file takes.
    """
    return unicodedata.normalize("NFC", name.strip())


def names_in(text: str | None) -> tuple[str, ...]:
    r"""The names in a text, without blanks around them.

    >>> names_in('age, "height, cm",it\'s "old"')
    ('age', 'height, cm', 'it\'s "old"')

    Raises:
        ConfigError: a quote is not closed.
    """
    try:
        parts = _parts(text or "", strict=True)
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise ConfigError(f"{quoted(text or '')} begins a name with a quote that nothing closes") from None
        parts = _parts(text or "", strict=False)  # a quote within a name
    return tuple(name for part in parts if (name := plain_name(part)))


def _parts(text: str, strict: bool) -> list[str]:
    return next(csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=strict), [])


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
