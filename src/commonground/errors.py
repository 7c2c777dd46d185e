"""Errors a user can act on: one clear sentence each, shown without a traceback by the command (exit code 2)."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from commonground.quoting import escaped
from commonground.suggest import meant
from commonground.wording import as_read

if TYPE_CHECKING:
    from pydantic import ValidationError


class CommonGroundError(Exception):
    """Base of every error raised on purpose; its text is one sentence: what is wrong and what was expected, with
    settings named as whoever reads it writes them (:mod:`~commonground.wording`).
    """

    def __str__(self) -> str:
        return as_read(super().__str__())


class ConfigError(CommonGroundError):
    """A setting is unknown, out of range, or in conflict with another one."""


class DataError(CommonGroundError):
    """A data file, data set or partition request is missing, damaged or impossible."""


class ModelError(CommonGroundError):
    """A model does not fit its data, or its parameter groups do not cover it."""


class LoneSampleError(ModelError):
    """A batch of a single sample, of which BatchNorm has no statistics."""

    @classmethod
    def of(cls, client: int, why: str = "") -> LoneSampleError:
        """Of a client's batch.

        Args:
            client: its number.
            why: what PyTorch says, if it was asked.
        """
        return cls(
            f"client {client} has a batch of a single sample, of which BatchNorm has no statistics; choose a "
            "--batch-size that does not leave one over, or, where a client has one training row alone, a model that "
            f"normalises within samples{f' ({why})' if why else ''}"
        )


class RunError(CommonGroundError):
    """A run's folder is missing, belongs to another run, or holds something unreadable."""


class BusyError(RunError):
    """Another process works in a folder."""


class UpdateError(CommonGroundError):
    """A client's update is not finite, incomplete or of the wrong shape; it has not reached the average."""


class NotFiniteError(UpdateError):
    """A value of a round is not finite: training diverged, or an update was of an extreme size."""


class AggregateError(NotFiniteError):
    """What the server makes of a round's updates is not finite; the round does not count (exit code 1)."""


class DivergenceError(CommonGroundError):
    """An iteration leaves every bound, usually because of its step size."""


class Interrupted(KeyboardInterrupt):
    """The user asked to stop; everything finished so far is in the checkpoint (exit code 130).

    Args:
        said: what was stopped.
        goes_on: whether and how it goes on, where the command that was stopped is not enough to know that.
    """

    def __init__(self, said: str, goes_on: str = "") -> None:
        super().__init__(said)
        self.goes_on = goes_on


class CommonGroundWarning(UserWarning):
    """Something that was done otherwise than one may think. The command prints it as one line."""


def warn(text: str) -> None:
    """A warning of Python's at the line of the user's code that called this package, however deep in it we are."""
    ours, frame, level = Path(__file__).parent, sys._getframe(1), 2
    while frame.f_back is not None and (
        ours in Path(frame.f_code.co_filename).parents or frame.f_code.co_filename == contextlib.__file__
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(as_read(text), CommonGroundWarning, stacklevel=level)


def shown(value: object) -> str:
    """A value as it was given, cut where it is long."""
    try:
        return escaped(repr(value))
    except ValueError:  # whole numbers of more than 4,300 digits are not written out
        return "a number of thousands of digits"


TOO_MANY = 30
"""How many names are told beside one that is likely meant."""

_WRITTEN = {
    "tuple_type": ", written as [1, 2]",
    "list_type": ", written as [1, 2]",
    "string_type": "; in quotes what looks like a number is one: '\"7\"'",
}


def _as_written(kind: str, given: object) -> str:
    """How what was given wrongly is written."""
    if callable(given):
        return ""
    if kind == "string_type" and isinstance(given, list | tuple):
        return ", several in one with commas: 'one,two'"
    return _WRITTEN.get(kind, "")


def one_sentence(error: ValidationError, known: Iterable[str]) -> str:
    """The first thing that is wrong with a set of settings, of which these are known."""
    first = error.errors()[0]
    where = str(first["loc"][0])  # behind it come places in a list, and which of several types was tried
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        names = list(known)
        if (likely := meant(where, names)) and len(names) > TOO_MANY:
            return f"unknown setting '{where}'{likely}"
        return f"unknown setting '{where}'{likely}; known are {', '.join(names)}"
    reason = first["msg"].removeprefix("Value error, ")
    written = _as_written(first["type"], first["input"])
    return f"'{where}' is {shown(first['input'])}: {reason[0].lower()}{reason[1:]}{written}"
