"""Foreign text in our lines: one line, cut, nothing in it acts."""

from __future__ import annotations

import doctest
import random
import sys

import pytest

from commonground import quoting
from commonground.quoting import escaped, quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fc.weight", "fc.weight"),
        ("Žofie Ångström, 東京 🙂", "Žofie Ångström, 東京 🙂"),
        ("C:\\new", "C:\\new"),
        ("a\nb\r\n\tc", "a\\nb\\r\\n\\tc"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("\u2066\u2069\u200b\u200f\ufeff", "\\u2066\\u2069\\u200b\\u200f\\ufeff"),
        ("\u2028\u2029\x85\xa0", "\\u2028\\u2029\\x85\\xa0"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("", ""),
    ],
)
def test_what_is_seen_stays_and_what_acts_is_written_out(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_quotes_cannot_be_closed_from_inside() -> None:
    assert quoted("a") == "'a'"
    assert quoted("it's \\' so") == "'it\\'s \\\\\\' so'"


@pytest.mark.parametrize("show", [escaped, quoted])
def test_long_text_is_cut(show: object) -> None:
    assert callable(show)
    assert show("x" * 200).strip("'") == "x" * 200
    assert show("x" * 201).strip("'") == "x" * 200 + "…"
    assert show("x" * 10_000_000, 5).strip("'") == "xxxxx…"
    assert show("ab\x00\x00", 7).strip("'") == "ab\\x00…"  # an escape is whole or not there


def test_any_text_becomes_one_bounded_printable_line() -> None:
    draw = random.Random(0)
    for _ in range(500):
        text = "".join(chr(draw.randrange(sys.maxunicode + 1)) for _ in range(draw.randrange(60)))
        shown = quoted(text, 100)
        assert shown.isprintable()
        assert len(shown) <= 103
        assert shown.encode("utf-8")


def test_the_examples() -> None:
    assert doctest.testmod(quoting).failed == 0
