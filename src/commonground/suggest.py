"""What somebody may have meant by a name that is none."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["meant", "nearest"]

CUTOFF = 0.62
"""How alike two names must be, of 1; a little more than depth and width."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, whatever the case of its letters and the kind of its dashes.

    >>> nearest("Fed_Rep", ["fedrep", "fedavg"])
    'fedrep'
    """
    plain = {_plain(each): each for each in known}
    found = get_close_matches(_plain(name), plain, n=1, cutoff=CUTOFF)
    return plain[found[0]] if found else None


def meant(name: str, known: Iterable[str]) -> str:
    """What to put behind an unknown name in a sentence; empty if nothing is like it.

    >>> meant("fedrpe", ["fedrep", "fedavg"])
    " (did you mean 'fedrep'?)"
    """
    near = nearest(name, known)
    return f" (did you mean '{near}'?)" if near else ""


def _plain(name: str) -> str:
    return name.casefold().replace("_", "-")
