"""Numbers of things in words, for messages and pages."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, what: str) -> str:
    """A number of things, such as ``1 client`` or ``1,200 clients``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
