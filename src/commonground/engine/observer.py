"""What hears of a run while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar, cast

from commonground.engine.setup import Setup
from commonground.errors import ConfigError

__all__ = ["Observer", "Several", "Silent", "completed"]

S = TypeVar("S")


class Observer(Protocol):
    """What a progress display hears. A method that an object given as ``observer=`` lacks is silent."""

    def begin(self, setup: Setup, engine: str, done: int) -> None:
        """The run starts, or goes on after ``done`` rounds."""

    def round(self, row: Mapping[str, Any]) -> None:
        """A round is done; ``row`` is its line of ``rounds.jsonl``."""

    def note(self, text: str) -> None:
        """Something worth one line."""

    def end(self) -> None:
        """The run is over, or stopped."""


class Silent:
    """Hears and says nothing."""

    def begin(self, setup: Setup, engine: str, done: int) -> None:
        """See :class:`Observer`."""

    def round(self, row: Mapping[str, Any]) -> None:
        """See :class:`Observer`."""

    def note(self, text: str) -> None:
        """See :class:`Observer`."""

    def end(self) -> None:
        """See :class:`Observer`."""


class Several:
    """Tells several observers what it hears, in their order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def begin(self, setup: Setup, engine: str, done: int) -> None:
        """See :class:`Observer`."""
        for observer in self._observers:
            observer.begin(setup, engine, done)

    def round(self, row: Mapping[str, Any]) -> None:
        """See :class:`Observer`."""
        for observer in self._observers:
            observer.round(dict(row))

    def note(self, text: str) -> None:
        """See :class:`Observer`."""
        for observer in self._observers:
            observer.note(text)

    def end(self) -> None:
        """See :class:`Observer`."""
        for observer in self._observers:
            observer.end()


def completed(observer: object, silent: S) -> S:
    """An observer with every method: those of the given object, and silent ones where it has none.

    Args:
        observer: any object with some of the methods; None hears nothing.
        silent: an object with all of them.

    Raises:
        ConfigError: the object has none of the methods, one is not callable, or one seems to be misspelt.
    """
    if observer is None:
        return silent
    if isinstance(observer, type):
        raise ConfigError(f"an observer is an object, such as {observer.__name__}(), and not its class")
    wanted = [name for name in dir(silent) if not name.startswith("_")]
    known = ", ".join(wanted)
    whose = f"the observer, a {type(observer).__name__},"
    missing = [name for name in wanted if not hasattr(observer, name)]
    for name in wanted:
        if name not in missing and not callable(getattr(observer, name)):
            raise ConfigError(f"{whose} has '{name}', but not as a method; an observer's methods are {known}")
    own = [name for name in dir(observer) if not name.startswith("_") and callable(getattr(observer, name, None))]
    for name in missing:
        for near in get_close_matches(name, (other for other in own if other not in wanted), n=1, cutoff=0.7):
            raise ConfigError(
                f"{whose} has no method '{name}' but '{near}', which nobody calls; an observer's methods are {known}"
            )
    if len(missing) == len(wanted):
        more = " (a plain function can be given as on_round=)" if callable(observer) else ""
        raise ConfigError(f"{whose} lacks the method '{wanted[0]}' and all others: {known}{more}")
    if not missing:
        return cast("S", observer)
    whole = type("Partial", (type(silent),), {})()
    vars(whole).update({name: getattr(observer, name) for name in wanted if name not in missing})
    return cast("S", whole)
