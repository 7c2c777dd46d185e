"""The cells of one column as words, numbers or dates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.data.tables.dates import DATE_LIKE
from commonground.data.tables.spelling import places_of
from commonground.single_precision import TARGET_STEPS, rounding_shows, step_at, too_large

__all__ = [
    "EXACT",
    "FIRST",
    "MISSING",
    "Cells",
    "Floats",
    "is_text",
    "number_of",
    "plain_numbers",
    "rounded_away",
    "thousands_or_not",
    "words_of",
]

Floats = npt.NDArray[np.float64]

MISSING = ("", "na", "n/a", "nan", "nat", "null", "none", "?")
"""Cells that say there is no value, in small letters."""

FIRST = 200
"""Words by which it is seen what a column hardly holds; the others are not looked at then."""

EXACT = 2**53
"""Up to which doubles tell whole numbers apart."""

_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_TIMES = ":[0-5][0-9]"
_NUMBERS = {
    "point": r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$",
    "comma": r"^[+-]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d*)?([eE][+-]?\d+)?$",
    "thousands": r"^[+-]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d*)?([eE][+-]?\d+)?$",
}
_INFINITE = r"(?i)^[+-]?inf(inity)?$"
_CLOCK = re.compile(
    r"(?:(?P<days>[+-]?\d{1,6}) days?,? \+?)?(?P<sign>[+-])?(?P<hours>\d{1,6}):(?P<minutes>[0-5]\d)"
    r"(?::(?P<seconds>[0-5]\d(?:\.\d+)?))?"
)


@dataclass(frozen=True, eq=False)
class Cells:
    """A column's cells as words, each different one once.

    Attributes:
        distinct: the different words as a pyarrow array, without blanks around them.
        codes: which of them each row has [N]; −1 where there is none.
        typed: whether the cells were numbers before: then 1 and 1.0 cannot be two words.
    """

    distinct: Any
    codes: npt.NDArray[np.int64]
    typed: bool = False

    @cached_property
    def words(self) -> list[str]:
        """The different words."""
        words: list[str] = self.distinct.to_pylist()
        return words

    @property
    def told(self) -> list[str]:
        """The different words as other clients are told them: numbers as short as they are, for what one's file stores
        as 1 beside 2 another's has beside 1.5.
        """
        return [word.removesuffix(".0") for word in self.words] if self.typed else self.words

    def places(self, names: Sequence[str], apart: Sequence[str] = ()) -> list[int]:
        """Which of some names each different word is (:func:`places_of`)."""
        return places_of(self.words, names, apart, typed=self.typed)

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """Rows of each word."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.distinct))

    def spread(self, values: Sequence[float] | Floats) -> Floats:
        """A number per word as a number per row, NaN where there is no word."""
        return np.append(np.asarray(values, dtype=np.float64), np.nan)[self.codes]

    def numbers(self, decimal: str) -> Floats:
        """What each different word says as a number, NaN if it is none; times of day and durations (``13:27``,
        ``2 days 13:27:05``) are numbers of seconds.

        Args:
            decimal: ``point``; ``comma`` for 1.234,5; ``thousands`` for 1,234.5.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        values = np.full(len(self.distinct), np.nan)
        fits = _matches(self.distinct, _NUMBERS[decimal])
        plain = self.distinct.filter(pa.array(fits))
        if decimal != "point":
            plain = pc.replace_substring(plain, "." if decimal == "comma" else ",", "")
        if decimal == "comma":
            plain = pc.replace_substring(plain, ",", ".")
        values[fits] = plain.cast(pa.float64()).to_numpy(zero_copy_only=False)
        values[_matches(self.distinct, _INFINITE)] = np.inf
        for place in np.flatnonzero(np.isnan(values) & _matches(self.distinct, _TIMES)):
            values[place] = _seconds(self.distinct[place].as_py())
        return values

    @cached_property
    def clocks(self) -> npt.NDArray[np.bool_]:
        """Which words are times of day or durations."""
        return _matches(self.distinct, _TIMES)

    @property
    def holds_clocks(self) -> bool:
        """Whether most of them are: 12:30 among numbers is a slip, and so is 45 among times."""
        return self.share(self.clocks) > 0.5

    def share(self, fits: Sequence[bool] | npt.NDArray[np.bool_]) -> float:
        """The share of rows, among those with a word, whose word fits."""
        whole = int(self.counts.sum())
        return float(self.counts[np.asarray(fits, dtype=bool)].sum()) / whole if whole else 0.0

    @property
    def looks_like_dates(self) -> bool:
        """Whether most of the first words begin as dates do."""
        first = self.distinct[:FIRST].to_pylist()
        return bool(first) and sum(bool(DATE_LIKE.match(word)) for word in first) > 0.5 * len(first)

    @property
    def decimal(self) -> str | None:
        """How most of the column's numbers are written: ``point``, ``comma`` (1.234,5) or ``thousands`` (1,234.5); None
        where its commas may be either: 3,270 beside 3.1 is 3270, or a client's file with decimal commas among others.
        """
        commas = _matches(self.distinct, ",")
        if not commas.any():
            pointed = [word for word in self.words if "." in word]
            grouped = any(word.count(".") > 1 for word in pointed) and all(map(_THOUSANDS.fullmatch, pointed))
            return "comma" if grouped else "point"  # 1.200.000 has one reading
        fits = {way: _matches(self.distinct, pattern) for way, pattern in _NUMBERS.items()}
        either = bool((fits["comma"] & fits["thousands"])[commas].all())
        if either and self.share(np.logical_or.reduce(list(fits.values()))) >= 0.5:
            return None
        return max(fits, key=lambda way: self.share(fits[way]))


def _seconds(word: str) -> float:
    """A time of day (hours and minutes, perhaps seconds) or a duration in seconds, NaN if it is neither."""
    found = _CLOCK.fullmatch(word)
    if found is None:
        return np.nan
    days, hours, minutes, seconds = (float(found[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    clock = 3600 * hours + 60 * minutes + seconds
    return 86400 * days + (-clock if found["sign"] == "-" else clock)


def _matches(words: Any, pattern: str) -> npt.NDArray[np.bool_]:
    import pyarrow.compute as pc

    return np.asarray(pc.match_substring_regex(words, pattern).to_numpy(zero_copy_only=False), dtype=bool)


def words_of(array: Any, *, keep: bool = False) -> Cells:
    """A pyarrow column's cells as words: numbers as a CSV file has them (1, 2; 1.0, 1.5), truths as ``true`` and
    ``false``.

    Args:
        array: strings, numbers, truths or dates.
        keep: whether words such as ``NA`` are words; empty cells never are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    typed = bool(pa.types.is_floating(array.type) or pa.types.is_integer(array.type))
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
        whole = pc.all(pc.equal(array, pc.trunc(array))).as_py() and pc.max(pc.abs(array)).as_py() < EXACT
        array = array.cast(pa.int64()) if whole else _with_points(array.cast(pa.string()))
    if not is_text(array.type):
        array = array.cast(pa.string())
    coded = _without_missing(array, MISSING[:1] if keep else MISSING)
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    coded = coded.dictionary_encode()
    codes = pc.fill_null(coded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return Cells(coded.dictionary, np.asarray(codes, dtype=np.int64), typed)


def _with_points(words: Any) -> Any:
    """Numbers as strings, whole ones with a point as well (1.0), as they are written beside others with a fraction."""
    import pyarrow.compute as pc

    return pc.if_else(pc.match_substring_regex(words, r"^-?\d+$"), pc.binary_join_element_wise(words, ".0", ""), words)


def plain_numbers(array: Any) -> Floats | None:
    """A column of numbers at once, NaN where a cell is missing; None if some cell is no plain number."""
    import pyarrow as pa

    values = _as_numbers(array)  # at a sixth of the time where nothing is missing and no blanks stand around numbers
    if values is None and is_text(array.type):
        values = _as_numbers(_without_missing(array, MISSING))
    if values is None:
        return None
    numbers: Floats = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
    return np.asarray(numbers, dtype=np.float64)


def _as_numbers(array: Any) -> Any:
    import pyarrow as pa

    try:
        return array.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def thousands_or_not(array: Any) -> str | None:
    """A word of a column whose points may all mark thousands, 8.520; None if there is none, or some cannot."""
    words = [word for word in words_of(array).words if "." in word]
    return words[0] if words and all(_THOUSANDS.fullmatch(word) for word in words) else None


def seems_grouped(array: Any) -> str | None:
    """A word of a column of text whose points mark thousands by every sign, 2.545 beside 932: all numbers without a
    point are whole and have at most three digits, some of them three. None where it is not so.
    """
    begins = [word for word in array[:500].to_pylist() if word is not None and "." in word]
    if begins and not _THOUSANDS.fullmatch(begins[0].strip()):
        return None  # as in almost every column of fractions
    word = thousands_or_not(array)
    if word is None:
        return None
    plain = [other for other in words_of(array).words if "." not in other]
    whole = all(re.fullmatch(r"[+-]?(0|[1-9]\d{0,2})", other) for other in plain)
    return word if whole and any(len(other.lstrip("+-")) == 3 for other in plain) else None


def begins_with_zero(array: Any) -> str | None:
    """A word of a column of text that is a whole number behind a zero, as codes are (02139); None if there is none."""
    import pyarrow.compute as pc

    found = array.filter(pc.fill_null(pc.match_substring_regex(array, r"^\s*0\d+\s*$"), False))
    return str(found[0]).strip() if len(found) else None


def numbers_alike(array: Any) -> tuple[str, str] | None:
    """Two words of a column of text that are one number and may be two names, as the versions 1.10 and 1.1; None if
    there are none, as where all numbers have as many decimals.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    padded = pc.unique(array.filter(pc.fill_null(pc.match_substring_regex(array, r"^\s*\d+\.\d*[1-9]0+\s*$"), False)))
    if not len(padded):
        return None
    words = pc.utf8_trim_whitespace(padded)
    shorter = pc.utf8_rtrim(words, "0")
    there = pc.is_in(shorter, value_set=pc.unique(pc.utf8_trim_whitespace(array)).cast(pa.string()))
    found = words.filter(there)
    return (str(found[0]), str(shorter.filter(there)[0])) if len(found) else None


def rounded_away(values: Floats) -> tuple[float, float] | None:
    """The step between single-precision numbers of this size, and by how much the values differ (their deviation),
    where the step is not small beside it; None where it is, or where they differ by the rounding of double precision.
    """
    most, deviation = _size_and_deviation(values)
    shows = 4 * np.spacing(most) < deviation and rounding_shows(most, deviation)
    return (step_at(most), deviation) if shows else None


def too_fine(values: Floats) -> bool:
    """Whether targets are to stay in double precision: they are too large for single precision to tell whole ones
    apart, or differ by so little that its rounding would show in what a model errs by.
    """
    most, deviation = _size_and_deviation(values)
    return too_large(most) or (4 * np.spacing(most) < deviation and rounding_shows(most, deviation, TARGET_STEPS))


def _size_and_deviation(values: Floats) -> tuple[float, float]:
    """The largest size of the numbers that are there, and their deviation; 0 and 0 if none is."""
    there = values[~np.isnan(values)]
    return (float(np.abs(there).max()), float(there.std())) if len(there) else (0.0, 0.0)


def is_text(kind: Any) -> bool:
    """Whether a pyarrow type is one of strings."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _without_missing(array: Any, missing: Sequence[str]) -> Any:
    """Strings without blanks around them, letters with marks as one character each; null where they say that there is
    no value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(array)
    if not pc.all(pc.string_is_ascii(trimmed)).as_py():
        trimmed = pc.utf8_normalize(trimmed, "NFC")  # ö as one character or as two is one letter
    none = pc.is_in(pc.utf8_lower(trimmed), value_set=pa.array(missing, trimmed.type))
    return pc.if_else(none, pa.scalar(None, trimmed.type), trimmed)


def number_of(word: str) -> float:
    """A word as a number, NaN if it is none."""
    try:
        return float(word)
    except ValueError:
        return np.nan
