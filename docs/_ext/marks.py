"""Small things of Markdown that generated pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_SPECIAL = re.compile(r"([\\*_\[\]<>|#~])")


def plain(text: object) -> str:
    """A text whose signs mean nothing to Markdown, but for `code`, which stays code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other half
        return _SPECIAL.sub(r"\\\1", str(text)).replace("`", "\\`")
    return "`".join(part if place % 2 else _SPECIAL.sub(r"\\\1", part) for place, part in enumerate(parts))


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], numeric: Iterable[int] = ()) -> str:
    """A table; cells are Markdown already."""
    right = set(numeric)
    rule = "|".join("---:" if place in right else "---" for place in range(len(heads)))
    lines = [f"| {' | '.join(heads)} |", f"|{rule}|"]
    texts = (["–" if cell in (None, "") else str(cell) for cell in row] for row in rows)
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in texts)])


def folded(title: str, text: str) -> str:
    """A part that opens at a click."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def number(value: float | None) -> str | None:
    """To be read: two decimals, or three digits where that is more."""
    if value is None:
        return None
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
