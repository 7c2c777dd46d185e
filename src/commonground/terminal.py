"""Where results are printed, and whether somebody watches. Colours are rich's: NO_COLOR, FORCE_COLOR, TERM=dumb."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from commonground.quoting import escaped

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["human_bytes", "moves", "say", "standard_output"]


def standard_output() -> Console:
    """Where results are printed: as wide as the terminal, or 110 columns in a file or a pipe."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def say(text: str) -> None:
    """Say something beside the results: a line on standard error, whatever characters a user's data have in it."""
    print(escaped(text, 1000), file=sys.stderr)


def moves(console: Console) -> bool:
    """Whether a progress bar can move on standard error: on a terminal that can go back in a line.

    FORCE_COLOR asks for colours in a pipe, not for bars that are drawn a hundred times.
    """
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


def human_bytes(count: float) -> str:
    """Bytes in a unit that reads well."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
