"""Words that are one however they are spelt: ``True`` and ``true``, ``1.0`` and ``1``, a day and its midnight."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from commonground.data.tables.dates import date_numbers

__all__ = ["one_spelling", "places_of", "spelt_like", "spelt_twice"]

_NO_WIDTH = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,30})(\.0)?")
_FRACTION = re.compile(r"-?\d+\.(?!0$)\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def places_of(
    words: Sequence[str], names: Sequence[str], apart: Sequence[str] = (), *, typed: bool = False
) -> list[int]:
    """Which of some names each word is, −1 for none: as it stands, or spelt otherwise (``True`` for ``true``, ``1.0``
    for ``1``, ``2024-01-31 00:00:00`` for ``2024-01-31``) where that can be one name only.

    What a word is does not depend on the other words.

    Args:
        words: to find.
        names: to find them among.
        apart: words that are none of the names, though spelt like one.
        typed: whether the words were numbers: then 1 is 1.0 also among names such as 1.5, of which text may be two.
    """
    place = {name: number for number, name in enumerate(names)} | dict.fromkeys(apart, -1)
    if all(word in place for word in words):
        return [place[word] for word in words]
    others: dict[object, set[int]] = {}
    whole = typed or _all_whole(place)
    for name, spelling in zip(place, _spelt(list(place), whole), strict=True):
        others.setdefault(spelling, set()).add(place[name])
    found = [others.get(spelling, set()) for spelling in _spelt(words, whole)]
    return [place.get(word, min(of) if len(of) == 1 else -1) for word, of in zip(words, found, strict=True)]


def one_spelling(clients: Sequence[Sequence[str]]) -> dict[str, str]:
    """The spelling that all take for words which several clients spell differently (``1`` and ``1.0``, ``no`` and
    ``No``): that of the most clients, of these the shortest, of equally long ones the first. A client that has both
    tells two things by them; those stay.

    Args:
        clients: each one's words.
    """
    groups: dict[object, set[str]] = {}
    apart: set[object] = set()
    whole = all(map(_all_whole, clients))
    for words in clients:
        mine = _spelt(words, whole)
        apart |= {spelling for spelling, n in Counter(mine).items() if n > 1}
        for word, spelling in zip(words, mine, strict=True):
            groups.setdefault(spelling, set()).add(word)
    used = Counter(word for words in clients for word in set(words))
    taken = {
        spelling: min(group, key=lambda word: (-used[word], len(word), word)) for spelling, group in groups.items()
    }
    return {
        word: word if spelling in apart else taken[spelling] for spelling, group in groups.items() for word in group
    }


def spelt_twice(words: Sequence[str]) -> tuple[str, str] | None:
    """Two words of a column that differ in nothing but how they are spelt; None if there are none."""
    seen: dict[object, str] = {}
    for word, spelling in zip(words, _spelt(words, _all_whole(words)), strict=True):
        other = seen.setdefault(spelling, word)
        if other != word:
            return min(other, word), max(other, word)
    return None


def spelt_like(words: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Of some words those that are spelt like one of the names and are none."""
    found, known = places_of(words, names), set(names)
    return tuple(word for word, place in zip(words, found, strict=True) if place >= 0 and word not in known)


def _all_whole(words: Iterable[str]) -> bool:
    """Whether no word is a number with a fraction: where one is, 250 and 250.0 may be two (codes, versions)."""
    return not any(_FRACTION.fullmatch(word) for word in words)


def _seen(word: str) -> str:
    """What a reader sees of a word: letters with marks as one character each, without characters of no width."""
    return unicodedata.normalize("NFC", word).translate(_NO_WIDTH)


def _spelt(words: Sequence[str], whole: bool) -> list[object]:
    """What each word is, however it is spelt: a whole number (where all are), a day, or a word in small letters.

    Numbers written in any other way stay words: 007, 1e3 and 1_000 are not 7, 1000 and 1000.
    """
    dates = [place for place, word in enumerate(words) if _DATE.match(word)]
    moments = date_numbers([words[place] for place in dates], "ISO8601", instants=True)
    days = dict(zip(dates, moments, strict=True))
    spelt: list[object] = []
    for place, word in enumerate(words):
        if whole and _WHOLE.fullmatch(word):
            spelt.append(int(word.partition(".")[0]))
        elif np.isfinite(day := days.get(place, np.nan)):
            spelt.append(("day", float(day)))
        else:
            spelt.append(word.lower() if word.isascii() else _seen(word).lower())
    return spelt
