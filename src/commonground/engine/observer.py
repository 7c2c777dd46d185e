"""What hears of a run while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from commonground.engine.setup import Setup

__all__ = ["Observer", "Silent"]


class Observer(Protocol):
    """What a progress display hears."""

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
