"""Kinds of values that options take, and options that several commands have."""

from __future__ import annotations

import math
from typing import Any

import click

from commonground.suggest import meant

__all__ = ["Finite", "NameChoice", "kinds_option", "trust_code"]

kinds_option = click.option(
    "--kinds",
    help="how a table's columns are written, where that is not as in training: NAME=comma-number,NAME=date:%d.%m.%Y,…",
)

trust_code = click.option(
    "--trust-code", is_flag=True, help="run the Python files that the run names (file.py:…); they can do anything"
)


class NameChoice(click.Choice[str]):
    """A choice among names that says which one may have been meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, or an error that names the nearest."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message.removesuffix('.')}{meant(str(value), map(str, self.choices))}", param, ctx)


class Finite(click.FloatRange):
    """A range of numbers, to which neither infinity nor what is no number belongs."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or an error."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number
