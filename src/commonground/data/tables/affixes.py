"""Numbers with something around them: a unit, a percent sign, a currency, marks between thousands, an amount's minus.

What a number is does not depend on the other cells; which unit a column has does, and is kept with how it is read. A
column is taken for numbers so if every cell is one: one of another kind shows that they are names or categories.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commonground.data.tables.cells import FIRST, Cells, words_of
from commonground.quoting import quoted

__all__ = ["Around", "around", "bare", "bare_array", "common_affix", "known_units", "marked", "parted"]

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
_SPELLINGS = Counter(unit.lower() for unit in _UNITS)
_USUAL = {unit.lower(): unit for unit in _UNITS if _SPELLINGS[unit.lower()] == 1}
_COUNTED = re.compile(r"[^\W\d_]{3,}")  # rooms, stars
_NO_UNITS = frozenset(["am", "pm", "a.m", "p.m", "uhr"])  # of times of day
_MARKS = " '’\u00a0\u202f\u2009"
_MINUS = "-+\u2212"
_WORD = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[{_MINUS}])?\s*(?P<before>[A-Z]{{0,2}}[{_SIGNS}]|[^\W\d_]{{2,3}}\.?(?=\s))?\s*(?P<inner>[{_MINUS}])?"
    rf"(?P<number>[1-9]\d{{0,2}}(?:[{_MARKS}]\d{{3}})+(?:[.,]\d+)?|\d[\d.,]*(?:[eE][+-]?\d+)?|[.,]\d+)"
    rf"(?P<blank>\s*)(?P<after>[%‰{_SIGNS}]|°[CF]?|[^\W\d_][\w²³/.]*)?\s*(?P<close>\))?"
)
_BARE = re.compile(r"[+-]?[\d.,]+([eE][+-]?\d+)?")
_ZERO = re.compile(r"[+-]?0+([.,]0*)?")
_LONGEST = 60  # characters of a number with all that is around it; blanks of a longer word would take ages to divide
_SAME = 0.9  # of the words, with one affix: the others are slips, which are refused by name


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
    unit = _canonical(before or after)
    # A word of letters behind a number is rather a code or a name (12A, 12 Broadway), unless it is known as a unit.
    if (
        after
        and not _known(unit)
        and not (found["blank"] and _COUNTED.fullmatch(after) and after.islower() and after not in _NO_UNITS)
    ):
        return None
    if found["open"] and not before and not after and not re.search(r"[.,]\d\d$", found["number"]):
        return None  # (5) may be a note; (5.50) is an amount
    number = re.sub(f"[{_MARKS}]", "", found["number"])
    if "+" in signs and number != found["number"]:
        return None  # +48 601 234 567 is a telephone
    negative = bool(found["open"]) or any(sign != "+" for sign in signs)
    return ("-" if negative else "") + number, unit


def _known(unit: str) -> bool:
    return unit in _UNITS or unit in _CURRENCIES


def _canonical(affix: str) -> str:
    """A unit as it is kept: the singular of words (``years``, ``hrs``), and the usual letters of what is written in
    others (``KG``), where these are one unit's alone (mW is not MW).
    """
    if not affix or affix in _CURRENCIES:
        return affix
    if affix not in _UNITS and len(affix) > 1:  # 3G is no weight
        affix = _USUAL.get(affix.lower(), affix.lower())
    single = affix.removesuffix("s")
    return single if single != affix and len(single) > 1 and (single in _UNITS or len(single) > 2) else affix


@dataclass(frozen=True)
class Around:
    """What stands around the numbers of a column.

    Attributes:
        units: theirs, the most frequent first; an empty one is of numbers without any. Zeros have whichever there is.
        strays: words that are no numbers so written, the most frequent first.
        share: of the rows, those with a number.
        marked: a word that is a number only without what is around it, and has no unit; empty if there is none.
        number: which that is.
        codes: whether all numbers have marks between their digits, and as many digits, six or more: they are rather
            telephones or postcodes.
    """

    units: tuple[str, ...]
    strays: tuple[str, ...]
    share: float
    marked: str = ""
    number: str = ""
    codes: bool = False

    @property
    def of_one_unit(self) -> bool:
        """Whether all words are numbers of one unit, or with marks in them and no telephones."""
        return not self.strays and len(self.units) == 1 and bool(self.units[0] or self.marked) and not self.codes

    @property
    def known(self) -> bool:
        """Whether all units are known ones: of 3 oaks and 4 elms it is not certain that these are any."""
        return all(map(_known, filter(None, self.units)))


def around(cells: Cells) -> Around | None:
    """What stands around the numbers of a column; None where most of the first words are no numbers."""
    first = cells.distinct[:FIRST].to_pylist()
    if not first or 2 * sum(parted(word) is not None for word in first) <= len(first):
        return None
    rows: Counter[str] = Counter()
    strays: Counter[str] = Counter()
    digits, marked, zeros = set[int](), ("", ""), 0
    bare_words = False
    for word, n in zip(cells.words, cells.counts.tolist(), strict=True):
        found = parted(word)
        if found is None:
            strays[word] += n
            continue
        number, unit = found
        if _ZERO.fullmatch(number) and not unit:
            zeros += n
            continue
        rows[unit] += n
        if unit or _BARE.fullmatch(word):
            bare_words = True
            continue
        marked = marked if marked[0] else (word, number)
        digits.add(len(number) if number.isdecimal() else 0)
    units = tuple(unit for unit, _ in rows.most_common()) or ("",)
    whole = int(cells.counts.sum())
    codes = bool(marked[0]) and not bare_words and not zeros and len(digits) == 1 and min(digits) > 5
    share = (whole - sum(strays.values())) / whole
    return Around(units, tuple(word for word, _ in strays.most_common()), share, *marked, codes)


def known_units(cells: Cells) -> tuple[str, ...]:
    """The units beside a column's numbers that are known ones, and so no words of the table's own."""
    found = around(cells)
    return () if found is None else tuple(unit for unit in found.units if unit and _known(unit))


def common_affix(cells: Cells) -> str:
    """The unit that almost all words have of a column that is known to be one of numbers; empty if there is none."""
    found = around(cells)
    if found is None or found.share < _SAME or len(found.units) > 1:
        return ""
    return found.units[0]


def bare(cells: Cells, affix: str) -> Cells:
    """The same cells with their numbers alone.

    Args:
        cells: of words.
        affix: the unit of the column's numbers; a word without it becomes empty, as no number is, unless it is 0. Where
            the column has none, words with one stay as they are.
    """
    import pyarrow as pa

    odd = range(len(cells.distinct)) if affix else _odd(cells)
    if not len(odd):
        return cells
    words = list(cells.words)
    for place in odd:
        words[place] = _bare_word(words[place], affix)
    return replace(cells, distinct=pa.array(words, pa.string()))


def marked(cells: Cells) -> str:
    """A note on a word of a column of numbers that is one only without the marks in it; empty if there is none."""
    for place in _odd(cells):
        word = cells.words[place]
        if (found := parted(word)) is not None and not found[1]:
            return f"{quoted(word)} is read as the number {found[0]}"
    return ""


def _odd(cells: Cells) -> Sequence[int]:
    """Places of the words that are no plain numbers; most columns of numbers have none, which Arrow tells at once."""
    import pyarrow.compute as pc

    plain = pc.match_substring_regex(cells.distinct, f"^({_BARE.pattern})$").to_numpy(zero_copy_only=False)
    odd: list[int] = np.flatnonzero(~plain).tolist()
    return odd


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
