"""Text in a CSV file that a spreadsheet opens: shown as it is, never computed.

A cell that begins with ``=``, ``+``, ``-`` or ``@`` is a formula to spreadsheets. As they do it themselves, such a text
gets an apostrophe in front; and so does one that begins with apostrophes before such a character, so that the text can
be told from the cell. Characters that act instead of being seen are escaped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

from commonground.quoting import escaped

__all__ = ["as_csv", "cell", "without_apostrophe"]

LIMIT = 1000
_FORMULA = re.compile("'*[=+\\-@]")


def cell(text: str, *, numbers: bool = False, whole: bool = False) -> str:
    """A text as a cell.

    Args:
        text: of any origin.
        numbers: leave numbers such as ``-1`` alone, which a spreadsheet may well read.
        whole: leave it as long as it is, with its own lines.

    >>> cell("=1+1"), cell("ward"), cell("-1"), cell("-1", numbers=True)
    ("'=1+1", 'ward', "'-1", '-1')
    """
    shown = text if whole else escaped(text, LIMIT)
    return f"'{shown}" if _FORMULA.match(shown) and not (numbers and _is_number(shown)) else shown


def as_csv(rows: Iterable[Iterable[Any]], *, whole: bool = False) -> str:
    """A CSV file whose texts no spreadsheet computes; numbers stay what they are.

    Args:
        rows: a row of cells each.
        whole: texts are neither cut nor escaped.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [cell(part, numbers=True, whole=whole) if isinstance(part, str) else part for part in row] for row in rows
    )
    return text.getvalue()


def without_apostrophe(cell: str) -> str:
    """The text of a cell, as far as it was not escaped or cut.

    >>> without_apostrophe("'=1+1"), without_apostrophe("'s-Hertogenbosch")
    ('=1+1', "'s-Hertogenbosch")
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _is_number(text: str) -> bool:
    try:
        return bool(float(text) is not None)
    except ValueError:
        return False
