"""Numbers with something around them: a unit, a percent sign, a currency, marks between thousands, an amount's minus.

What a number is does not depend on the other cells; which unit a column has does, and is kept with how it is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from commonground.data.tables.cells import Cells, words_of
from commonground.quoting import quoted

__all__ = ["bare", "bare_array", "common_affix", "group_note", "mixed_units", "parted"]

_SIGNS = "$€£¥₹₽₩₺₴₫฿₪₦₱₡₲₵₸₼¢"
_CODES = """
    AED ARS AUD BGN BRL CAD CHF CLP CNY COP CZK DKK EGP EUR GBP HKD HUF IDR ILS INR ISK JPY KES KRW MXN MYR NGN NOK
    NZD PEN PHP PKR PLN RON RSD RUB SAR SEK SGD THB TRY TWD UAH USD VND ZAR
"""
_OTHERS = "US$ A$ AU$ C$ CA$ HK$ NZ$ R$ S$ Rs kr Kr Kč zł Ft Fr lei"
_CURRENCIES = frozenset([*_SIGNS, *_CODES.split(), *_OTHERS.split()])
# Without single letters that are as often part of a code (12C, 3B).
_KNOWN = """
    % ‰ pct ppm bps mm cm dm m km µm μm nm in ft yd mi mg µg μg g kg t lb lbs oz ml mL cl dl dL l L hl s ms sec min h hr
    hrs wk mo yr yrs day days week weeks month months year years hour hours °C °F ° W mW kW MW GW Wh kWh MWh mV kV mA Hz
    kHz MHz GHz kB KB MB GB TB KiB MiB GiB Pa hPa kPa MPa bar mbar psi km/h mph m/s bpm mmHg kcal cal kJ Nm m² m2 qm km²
    ha sqm sqft ft² m³ m3 dB mol mmol mmol/l mmol/L mg/dl mg/dL g/l g/L IU
"""
_UNITS = frozenset(_KNOWN.split())
_NO_UNITS = frozenset(["am", "pm", "a.m", "p.m", "uhr"])  # of times of day
_MARKS = " '’\u00a0\u202f\u2009"
_MINUS = "-+\u2212"
_WORD = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[{_MINUS}])?\s*(?P<before>[A-Z]{{0,2}}[{_SIGNS}]|[^\W\d_]{{2,3}}\.?)?\s*(?P<inner>[{_MINUS}])?"
    rf"(?P<number>[1-9]\d{{0,2}}(?:[{_MARKS}]\d{{3}})+(?:[.,]\d+)?|\d[\d.,]*(?:[eE][+-]?\d+)?|[.,]\d+)"
    rf"(?P<blank>\s*)(?P<after>[%‰{_SIGNS}]|°[CF]?|[^\W\d_][\w²³/.]*)?\s*(?P<close>\))?"
)
_BARE = re.compile(r"[+-]?[\d.,]+([eE][+-]?\d+)?")
_ZERO = re.compile(r"[+-]?0+([.,]0*)?")
_LONGEST = 60  # characters of a number with all that is around it; blanks of a longer word would take ages to divide
_SAME = 0.9  # of the words, with one affix: the others are slips, which are refused by name
_FIRST = 200  # words by which a column of others is known


def parted(word: str) -> tuple[str, str] | None:
    """A number as it is written plainly, and its unit, empty for none; None if the word is no number so written."""
    if _BARE.fullmatch(word):
        return word, ""
    found = None if len(word) > _LONGEST else _WORD.fullmatch(word)
    if found is None or bool(found["open"]) != bool(found["close"]):
        return None
    signs = [sign for sign in (found["sign"], found["inner"]) if sign]
    before, after = (found["before"] or "").removesuffix("."), (found["after"] or "").removesuffix(".")
    if len(signs) + bool(found["open"]) > 1 or (before and after):
        return None
    if before and before not in _CURRENCIES:
        return None
    # A word of letters right behind a number is rather a code (12A), unless it is known as a unit.
    if after and not _known(after) and (not found["blank"] or len(after) < 2 or after.lower() in _NO_UNITS):
        return None
    if found["open"] and not before and not after and not re.search(r"[.,]\d\d$", found["number"]):
        return None  # (5) may be a note; (5.50) is an amount
    negative = bool(found["open"]) or any(sign != "+" for sign in signs)
    return ("-" if negative else "") + re.sub(f"[{_MARKS}]", "", found["number"]), before or after


def _known(affix: str) -> bool:
    return affix in _UNITS or affix in _CURRENCIES


def _looks_so(cells: Cells) -> bool:
    """Whether most of the first words are numbers with or without something around them."""
    first = cells.distinct[:_FIRST].to_pylist()
    return bool(first) and 2 * sum(parted(word) is not None for word in first) > len(first)


def _shares(cells: Cells) -> dict[str, float]:
    """The share of rows whose words are numbers, by their units."""
    rows: Counter[str] = Counter()
    for word, n in zip(cells.words, cells.counts.tolist(), strict=True):
        if (found := parted(word)) is not None:
            rows[found[1]] += n
    whole = int(cells.counts.sum())
    return {affix: n / whole for affix, n in rows.items()} if whole else {}


def common_affix(cells: Cells) -> str:
    """The unit that almost all words of a column have; empty if there is none."""
    if not _looks_so(cells):
        return ""
    shares = _shares(cells)
    most = max(shares, key=shares.__getitem__, default="")
    return most if shares.get(most, 0.0) >= _SAME else ""


def mixed_units(cells: Cells) -> tuple[str, ...]:
    """The units of a column whose words are numbers with several, or with one and without; empty of any other."""
    if not _looks_so(cells):
        return ()
    shares = _shares(cells)
    named = tuple(sorted((affix for affix in shares if affix), key=lambda affix: (-shares[affix], affix)))
    # Of words that are no known units it is not certain that they are any: 3 oaks, 4 elms.
    return named if len(shares) > 1 and sum(shares.values()) >= _SAME and all(map(_known, named)) else ()


def bare(cells: Cells, affix: str) -> Cells:
    """The same cells with their numbers alone.

    Args:
        cells: of words.
        affix: the unit of the column's numbers; a word without it becomes empty, as no number is, unless it is 0. Where
            the column has none, words with one stay as they are.
    """
    import pyarrow as pa

    if not affix and all(map(_BARE.fullmatch, cells.words)):
        return cells
    words = [_bare_word(word, affix) for word in cells.words]
    return replace(cells, distinct=pa.array(words, pa.string()))


def _bare_word(word: str, affix: str) -> str:
    found = parted(word)
    if found is not None and (found[1] == affix or (not found[1] and _ZERO.fullmatch(found[0]))):
        return found[0]
    return "" if affix else word


def bare_array(array: Any, affix: str | None) -> Any:
    """A column of text, its numbers alone where they have a unit."""
    import pyarrow as pa

    if not affix:
        return array
    cells = bare(words_of(array), affix)
    words: Sequence[str] = [*cells.words, ""]
    return pa.array(np.array(words, dtype=object)[cells.codes], pa.string())


def group_note(cells: Cells) -> str:
    """What is said of numbers without a unit that are written with marks between thousands or an accountant's minus."""
    for word in cells.words:
        if not _BARE.fullmatch(word) and (found := parted(word)) is not None and not found[1]:
            return f"{quoted(word)} is read as the number {found[0]}"
    return ""
