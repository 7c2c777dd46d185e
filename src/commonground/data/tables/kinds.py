"""What a column holds: numbers, categories, dates, truths, texts, identifiers, or always the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from commonground.data.tables.affixes import Around, around, bare, common_affix, marked, parted
from commonground.data.tables.cells import (
    FIRST,
    Cells,
    Floats,
    begins_with_zero,
    is_text,
    number_of,
    numbers_alike,
    plain_numbers,
    words_of,
)
from commonground.data.tables.dates import ORDERS, date_numbers, month_first
from commonground.errors import ConfigError, DataError
from commonground.name_lists import option
from commonground.quoting import quoted
from commonground.suggest import meant

__all__ = [
    "DAY_FIRST",
    "KINDS",
    "TRUTHS",
    "WRITTEN",
    "Column",
    "Reading",
    "dates_of",
    "kind_of",
    "parse_kind",
    "read_column",
    "understand",
]

KINDS = ("number", "comma-number", "point-number", "category", "boolean", "date", "text", "id")
"""As ``--kinds NAME=KIND`` takes them; ``date:FORMAT`` as well."""

WRITTEN = ("number", "date")
"""Kinds whose cells may be written in several ways."""

TRUTHS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "t": 1.0, "f": 0.0, "y": 1.0, "n": 0.0}
_PAIRS = ({"true", "false"}, {"yes", "no"}, {"t", "f"}, {"y", "n"})
_MOST = 0.9  # of the cells of a column of texts have to be numbers for it to be one of numbers
_CODE = re.compile(r"0\d[\d.]*|\d{16,}")  # with a zero before it, or with more digits than numbers have
_CLOCK = re.compile(r"([+-]?\d+ days?,? )?[+-]?\d+(:[0-5]\d){1,2}(\.\d+)?")
_DIGIT = re.compile(r"\d")
_NOT_FINITE = "is not a finite number"
_FEW = 20  # rows below which a column of different words is no identifier
_WORDS_OF_A_TEXT = 4.0  # blanks in an average cell of a text
_LARGEST = float(np.finfo(np.float32).max)
DAY_FIRST = "day before month"
"""The note of dates that may be written with the month first."""

_NO_NUMBER = "is no number"
_TOO_LARGE = "is too large (at most 3.4e38)"
_OFTEN = 3  # rows with a word that is no number from which it rather stands for none


@dataclass(frozen=True)
class Reading:
    """How a column's cells are read.

    Attributes:
        kind: ``number``, ``category``, ``boolean``, ``date``, ``text``, ``id``, ``constant``, or ``units`` of numbers
            with several units.
        decimal: of numbers, ``point``, ``comma`` or ``thousands`` (see :class:`~.cells.Cells`).
        order: of dates, ``ISO8601`` or as ``strptime`` has it.
        note: what was decided where the cells leave it open.
        clocks: of numbers, whether they are times of day and durations (``13:27``): then a plain number is none, and
            otherwise a time is none. None where most cells of a file say it, whatever the others are.
        affix: of numbers, the unit that each has beside it (``kg``, ``%``, ``$``); empty for none; None where almost
            all cells of a file say it.
    """

    kind: str
    decimal: str = "point"
    order: str = ""
    note: str = ""
    clocks: bool | None = None
    affix: str | None = None


@dataclass(frozen=True, eq=False)
class Column:
    """A column that is read.

    Attributes:
        name: its name.
        reading: how.
        numbers: of numbers, days and truths (0 or 1) [N], NaN where there is none; else None.
        cells: of words; else None.
        truths: whether its numbers are truths, which its file says, read as 0 and 1.
    """

    name: str
    reading: Reading
    numbers: Floats | None = field(default=None, repr=False)
    cells: Cells | None = field(default=None, repr=False)
    truths: bool = False

    @property
    def missing(self) -> int:
        """Rows without a value."""
        if self.numbers is not None:
            return int(np.isnan(self.numbers).sum())
        assert self.cells is not None
        return int((self.cells.codes < 0).sum())


def parse_kind(name: str, text: str) -> Reading:
    """The reading that a user asks for a column.

    Raises:
        ConfigError: there is no such kind.
    """
    kind, _, order = text.partition(":")
    if kind not in KINDS or (order and kind != "date"):
        near = meant(kind, KINDS)
        raise ConfigError(
            f"the kind of the column {quoted(name)} is {quoted(text)}{near}; it is one of {', '.join(KINDS)}"
        )
    if kind == "date":
        return Reading("date", order=order)
    decimal = {"comma-number": "comma", "point-number": "thousands"}.get(kind, "point")
    return Reading("number", decimal) if kind.endswith("number") else Reading(kind)


def kind_of(reading: Reading) -> str:
    """A reading as ``--kinds`` takes it: what :func:`parse_kind` makes it of."""
    if reading.kind == "date":
        return f"date:{reading.order}" if reading.order else "date"
    if reading.kind == "number":
        return {"comma": "comma-number", "thousands": "point-number"}.get(reading.decimal, "number")
    return reading.kind


def understand(path: Path, name: str, array: Any, typed: bool, where: Callable[[int], str]) -> Column:
    """A column, read as its cells suggest.

    A column is one of numbers, or of dates, if at least half of its cells are: the others are then refused by name,
    not taken for categories.

    Args:
        path: of the file, for messages.
        name: the column's.
        array: its pyarrow array.
        typed: whether strings of digits are words.
        where: from a row to where it stands.

    Raises:
        DataError: its commas may be decimal ones or mark thousands, or a cell does not fit (line and column named).
    """
    import pyarrow as pa

    if pa.types.is_boolean(array.type):
        return read_column(path, name, array, Reading("boolean"), where)
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        return read_column(path, name, array, Reading("date", order="ISO8601"), where)
    words = is_text(array.type) or pa.types.is_dictionary(array.type) or pa.types.is_null(array.type)
    if not words:
        return read_column(path, name, array, Reading("number"), where)
    if not typed and (numbers := plain_numbers(array)) is not None and not np.isnan(numbers).all():
        asked, note = option("--kinds", f"{name}=category"), ""
        if (zero := begins_with_zero(array)) is not None:
            note = f"{quoted(zero)} is read as the number {float(zero):g}; if it is a code, say {asked}"
        elif (alike := numbers_alike(array)) is not None:
            note = f"{quoted(alike[0])} and {quoted(alike[1])} are one number; if they are names, say {asked}"
        read = Reading("number", note=note, clocks=False, affix="")
        return Column(name, read, _single(path, name, array, numbers, where))
    cells = words_of(array)
    reading = _of_words(path, name, cells, typed, declared=pa.types.is_dictionary(array.type))
    return read_column(path, name, array, reading, where, cells)


def _of_words(path: Path, name: str, cells: Cells, typed: bool, *, declared: bool) -> Reading:
    """What a column of words holds.

    Args:
        path, name, cells, typed: as :func:`understand` has them.
        declared: whether the file calls the words categories.
    """
    distinct = len(cells.distinct)
    if not distinct:
        return Reading("constant")
    if not typed and (plain := _as_numbers(path, name, cells, 0.5)) is not None:
        return replace(plain, affix="", note=marked(cells))
    if {word.lower() for word in cells.words} in _PAIRS:
        return Reading("boolean")
    if typed and not declared and not any(map(_CODE.fullmatch, cells.words)):
        plain = _as_numbers(path, name, cells, 1.0)
        if plain is not None:
            return replace(plain, affix="", note=_else_category(name, "texts that are numbers, read as numbers"))
    if distinct == 1:
        return Reading("constant")
    if cells.looks_like_dates and (dates := dates_of(cells)) is not None:
        short = "%y" in dates.order
        return replace(dates, note=_else_category(name, f"dates as {dates.order}")) if short else dates
    found = None if declared else around(cells)
    if found is not None and found.of_one_unit:
        unit = found.units[0]
        with_it = _as_numbers(path, name, bare(cells, unit), 1.0)
        if with_it is not None:
            what = f"numbers with {quoted(unit)}" if unit else f"{quoted(found.marked)} is {found.number}"
            return replace(with_it, affix=unit, note=_else_category(name, f"{what}, read as numbers"))
    rows, first = int(cells.counts.sum()), cells.distinct[:1000].to_pylist()
    if sum(word.count(" ") for word in first) >= _WORDS_OF_A_TEXT * len(first) and distinct > max(_FEW, 0.2 * rows):
        return Reading("text")
    if rows >= _FEW and (distinct > 0.9 * rows or (distinct > 0.5 * rows and distinct > 200)):
        return Reading("id") if found is None or not _almost_numbers(found) else Reading("units", note=_said(found))
    if found is not None and distinct > _FEW and not found.strays and len(found.units) > 1 and found.known:
        return Reading("units", note=_said(found))
    return Reading("category")


def _else_category(name: str, what: str) -> str:
    """A note on how cells are read that may be names as well."""
    return f"{what}; else say {option('--kinds', f'{name}=category')}"


def _almost_numbers(found: Around) -> bool:
    """Whether a column that names its rows, one by one, is rather one of numbers that are not all of one unit."""
    return found.known and found.units != ("",) and found.share >= _MOST


def _said(found: Around) -> str:
    """The units of a column that is left out for having several, or words beside them; which words is not kept with a
    run.
    """
    units = [quoted(unit) if unit else "none" for unit in found.units[:3]]
    beside = ", beside other words" if found.strays else ""
    return ", ".join(units) + (", …" if len(found.units) > 3 else "") + beside


def _as_numbers(path: Path, name: str, numbers: Cells, least: float) -> Reading | None:
    """How a column of words is read as numbers, if at least this share of its cells are some; else None.

    Raises:
        DataError: its commas may be decimal ones or mark thousands.
    """
    decimal = numbers.decimal
    if decimal is None:
        commas = next(word for word in numbers.words if "," in word)
        raise DataError(
            f"{path}, column {quoted(name)}: the comma in {quoted(commas)} may be a decimal one or mark thousands; "
            f"say {option('--kinds', f'{name}=comma-number')} or {option('--kinds', f'{name}=point-number')}"
        )
    if numbers.share(~np.isnan(numbers.numbers(decimal))) < least:
        return None
    return Reading("number", decimal, clocks=numbers.holds_clocks)


def dates_of(cells: Cells) -> Reading | None:
    """The order of day, month and year in which most of the words are dates; None if there is none."""
    fitting, first = [], cells.words[:FIRST]
    for order in ("ISO8601", *ORDERS):
        if len(first) == FIRST and np.isnan(date_numbers(first, order)).all():
            continue
        days = date_numbers(cells.words, order)
        if "%y" in order and not _is_a_day(days, cells.words, order):
            continue
        share = cells.share(~np.isnan(days))
        if share == 1.0 and order == "ISO8601":
            return Reading("date", order=order)
        if share >= 0.5:
            fitting.append((share, order))
    if not fitting:
        return None
    best = max(share for share, _ in fitting)
    orders = [order for share, order in fitting if share == best]
    # Where both fit: the more usual one of the world, and it is said.
    return Reading("date", order=orders[0], note=DAY_FIRST if month_first(orders[0]) in orders else "")


def _is_a_day(days: Floats, words: Sequence[str], order: str) -> bool:
    """Whether all words are dates of so short years, and a day beyond the twelfth shows that they are none of the codes
    that are written so (01.11.10).
    """
    if not len(words) or np.isnan(days).any():
        return False
    place = 0 if order.startswith("%d") else 1
    return any(int(re.split("[./]", word)[place]) > 12 for word in words)


# -- reading --------------------------------------------------------------------------------------------------------


def read_column(
    path: Path,
    name: str,
    array: Any,
    reading: Reading,
    where: Callable[[int], str],
    cells: Cells | None = None,
    *,
    truths: bool = True,
) -> Column:
    """A column's cells as its reading says.

    Args:
        path: of the file, for messages.
        name: the column's.
        array: its pyarrow array.
        reading: how.
        where: from a row to where it stands.
        cells: the words of the array, if they are known already.
        truths: whether truths, where the file says that these are some, may be the numbers 0 and 1.

    Raises:
        DataError: a cell is no number, date or truth (line and column named).
    """
    import pyarrow as pa

    if reading.kind == "number":
        as_truths = pa.types.is_boolean(array.type)
        if as_truths and not truths:
            cells = words_of(array)
            _refuse(path, name, cells, np.ones(len(cells.words), dtype=bool), where, _NO_NUMBER)
        numbers, reading = _numbers(path, name, array, reading, where, cells)
        return Column(name, reading, numbers, truths=as_truths)
    if reading.kind == "date":
        return _read_dates(path, name, array, reading, where, cells)
    cells = words_of(array) if cells is None else cells
    if reading.kind == "boolean":
        values = [TRUTHS.get(word.lower(), number_of(word)) for word in cells.words]
        values = [value if value in (0.0, 1.0) else np.nan for value in values]
        _refuse(path, name, cells, np.isnan(values), where, "is neither true nor false")
        return Column(name, reading, cells.spread(values))
    return Column(name, reading, cells=cells)


def _numbers(
    path: Path, name: str, array: Any, reading: Reading, where: Callable[[int], str], cells: Cells | None
) -> tuple[Floats, Reading]:
    """The numbers, and the reading with what it left to the cells."""
    # What a file stores as numbers is in the column's unit, and of times in seconds; a text has to say it.
    plain = reading.decimal == "point" and not reading.clocks and not reading.affix
    as_typed = cells is None and (plain or not is_text(array.type))
    numbers = plain_numbers(array) if as_typed else None
    if numbers is None:
        cells = words_of(array) if cells is None else cells
        affix = common_affix(cells) if reading.affix is None else reading.affix
        values = bare(cells, affix).numbers(reading.decimal)
        clocks = cells.holds_clocks if reading.clocks is None else reading.clocks
        slips = ~cells.clocks & (values != 0) if reading.clocks else np.zeros(len(values), dtype=bool)
        reading = replace(reading, clocks=clocks, affix=affix)
        bad = np.isnan(values) | (slips if clocks else cells.clocks)
        _refuse(path, name, cells, bad, where, partial(_no_number, reading))
        numbers = cells.spread(values)
    else:
        reading = replace(reading, clocks=bool(reading.clocks), affix=reading.affix or "")
    return _single(path, name, array, numbers, where), reading


def _single(path: Path, name: str, array: Any, numbers: Floats, where: Callable[[int], str]) -> Floats:
    """The numbers, if all of them are finite in single precision."""
    if np.nanmax(np.abs(numbers), initial=0.0) > _LARGEST:
        row = int(np.argmax(np.abs(np.nan_to_num(numbers, posinf=np.inf, neginf=np.inf)) > _LARGEST))
        what = _TOO_LARGE if np.isfinite(numbers[row]) or _DIGIT.search(str(array[row])) else _NOT_FINITE
        _bad(path, name, str(array[row]).strip(), where(row), what)
    return numbers


def _read_dates(
    path: Path, name: str, array: Any, reading: Reading, where: Callable[[int], str], cells: Cells | None
) -> Column:
    import pyarrow as pa

    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        cells = words_of(array.cast(pa.timestamp("us"), safe=False).cast(pa.string()))  # what is finer than that is cut
        return Column(name, reading, cells.spread(date_numbers(cells.words, "ISO8601")))
    cells = words_of(array) if cells is None else cells
    order = reading.order
    if not order:
        found = dates_of(cells)
        order = "ISO8601" if found is None else found.order
        if reading.note == "" and found is not None:
            reading = replace(reading, note=found.note)
    values = date_numbers(cells.words, order)
    shown = {"ISO8601": "as in 2024-01-31"}.get(order, f"written as {order}")
    if not reading.order:
        shown += (
            f"; if it is one, say how it is written by {option('--kinds', f'{name}=date:FORMAT')}, as date:%d.%m.%Y"
        )
    _refuse(path, name, cells, np.isnan(values), where, f"is no date {shown}")
    return Column(name, Reading("date", order=order, note=reading.note), cells.spread(values))


def _refuse(
    path: Path, name: str, cells: Cells, bad: Any, where: Callable[[int], str], what: str | Callable[[str, int], str]
) -> None:
    """Name the first row whose word is bad, and what is wrong with it."""
    if np.any(bad):
        row = int(np.flatnonzero(np.append(np.asarray(bad), False)[cells.codes])[0])
        place = cells.codes[row]
        word, rows = cells.words[place], int(cells.counts[place])
        _bad(path, name, word, where(row), what if isinstance(what, str) else what(word, rows))


def _no_number(reading: Reading, word: str, rows: int) -> str:
    """What is wrong with a word of so many rows in a column of numbers."""
    if reading.clocks:
        plain = parted(word) is not None
        return "is a plain number, and the column holds times as 13:27" if plain else "is no time as 13:27"
    for own, mark, other in (("point", ",", "comma"), ("comma", ".", "point")):
        if reading.decimal == own and re.fullmatch(rf"[+-]?\d+\{mark}\d+", word):
            return f"has a decimal {other}, and the column's numbers are read with a decimal {own}"
    if _CLOCK.fullmatch(word):
        return "is a time of day or a duration, and the column holds plain numbers"
    if not _DIGIT.search(word):
        none = f"; if it stands for none, leave the cell empty ({rows:,} rows have it)"
        return _NO_NUMBER + (none if rows >= _OFTEN else "")
    found = parted(word)
    if found is not None and found[1] != reading.affix:
        own = f"have {quoted(reading.affix)}" if reading.affix else "have none"
        return f"{f'has the unit {quoted(found[1])}' if found[1] else 'has no unit'}, and the column's numbers {own}"
    return _NO_NUMBER


def _bad(path: Path, name: str, word: str, place: str, what: str) -> NoReturn:
    raise DataError(f"{path}, {place}, column {quoted(name)}: {quoted(word)} {what}")
