"""The kinds of stored samples: numbers, tokens, several arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commonground.data.arrays import Array, Preprocess
from commonground.data.formats.base import Given, InputFormat
from commonground.data.formats.named import NamedArrays, both_dtypes, ordered, pack_named
from commonground.data.formats.numbers import Numbers
from commonground.data.formats.tokens import TokenRows

__all__ = [
    "FORMATS",
    "Given",
    "InputFormat",
    "NamedArrays",
    "Numbers",
    "TokenRows",
    "both_dtypes",
    "format_class",
    "format_of",
    "ordered",
    "pack_named",
    "read_format",
]

FORMATS: tuple[type[InputFormat], ...] = (Numbers, TokenRows, NamedArrays)


def format_class(x: Array) -> type[InputFormat] | None:
    """The kind of samples in an array; None if it is of no kind that is stored."""
    return next((form for form in FORMATS if form.recognises(x)), None)


def format_of(x: Array, preprocess: Preprocess) -> InputFormat:
    """The format of samples that are stored in an array."""
    return (format_class(x) or Numbers).of(x, preprocess)


def read_format(split: Mapping[str, Any]) -> InputFormat:
    """The format that ``split.json`` describes."""
    given = split["preprocess"]
    double = bool(given.get("double", False))  # of an exported model alone
    preprocess = Preprocess(given["scale"], tuple(given["mean"]), tuple(given["std"]), double)
    return {form.kind: form for form in FORMATS}[split["inputs"]].read(split, preprocess)
