"""What a notebook shows of a result: a short table and a link, every text of the user's escaped."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import quote

from commonground.quoting import escaped

__all__ = ["html_table", "report_link"]

_LONGEST = 120  # characters of a cell


def html_table(
    rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), title: str = "", bold: Collection[int] = ()
) -> str:
    """A table whose first column heads its rows.

    Args:
        rows: texts, escaped here; long ones are cut.
        header: of the columns, if they have one.
        title: above it.
        bold: numbers of rows set in bold.
    """
    head = f"<thead><tr>{''.join(_cell('th', name) for name in header)}</tr></thead>" if header else ""
    lines = []
    for number, (first, *rest) in enumerate(rows):
        weight = ";font-weight:bold" if number in bold else ""
        lines.append(f"<tr>{_cell('th', first)}{''.join(_cell('td', text, weight) for text in rest)}</tr>")
    caption = f"<caption>{_text(title)}</caption>" if title else ""
    return f"<table>{caption}{head}<tbody>{''.join(lines)}</tbody></table>"


def report_link(folder: Path | None) -> str:
    """A link to a folder's ``report.html``, or nothing where there is none."""
    page = None if folder is None else folder / "report.html"
    if page is None or not page.is_file():
        return ""
    target = page.as_uri() if page.is_absolute() else quote(page.as_posix())
    return f'<p><a href="{html.escape(target)}">{_text(str(page))}</a></p>'


def _cell(tag: str, text: str, style: str = "") -> str:
    return f"<{tag} style='text-align:left{style}'>{_text(text)}</{tag}>"


def _text(text: str) -> str:
    return html.escape(escaped(" ".join(text.split()), _LONGEST))
