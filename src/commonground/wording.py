"""Settings in messages as whoever reads them writes them: options of the command, or arguments in Python.

Messages are written once, with the command's options (``--dp-epsilon 8``). Inside the command they stay so; a caller in
Python reads of ``dp_epsilon=8``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["as_read", "naming_options"]

_SWITCHES = frozenset({"allow-other-numerics", "dp-secret-noise", "keep", "no-decay-bias", "resume", "trust-code"})
_OTHERWISE = {
    "--client ID": "client=…",
    "--global": "shared=True",
    "--dry-run": "cg.plan",
    "--label": "target",
    "--classes-per-client S": "classes_per_client=S",
}
# Commands, and what is quoted: names, files and cells that only look so.
_KEPT = re.compile(r"(`[^`]*`|(?<!\w)'[^']*'(?!\w)|\bcommonground [a-z][^;,)`]*)")
_SET = re.compile(r"--set (?P<model>model\.)?(?P<name>\w+)=(?P<value>[^\s,;:)]+)")
_OPTION = re.compile(
    r"(?<![\w\"/=-])--(?P<name>[a-z][a-z0-9-]*[a-z0-9])"
    r"(?: (?P<number>-?\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w%]|\.\w)| (?P<pair>\w+=[\w:-]+(?:,\w+=[\w:-]+)*))?"
)

_options_named = False


@contextmanager
def naming_options() -> Iterator[None]:
    """Meanwhile messages name the command's options: in the command itself, and in processes that it starts."""
    global _options_named
    before, _options_named = _options_named, True
    try:
        yield
    finally:
        _options_named = before


def as_read(text: str) -> str:
    """A message for whoever reads it now.

    >>> as_read("--early-stopping 3 needs rows to judge by; add --validation-fraction, such as 0.2")
    'early_stopping=3 needs rows to judge by; add validation_fraction, such as 0.2'
    >>> as_read("say --kinds price=comma-number, or train with --set model.rank=4 and --resume")
    'say kinds="price=comma-number", or train with model_options={"rank": 4} and resume=True'
    """
    if _options_named or "--" not in text:
        return text
    parts = _KEPT.split(text)
    return "".join(part if number % 2 else _in_python(part) for number, part in enumerate(parts))


def _in_python(text: str) -> str:
    for option, name in _OTHERWISE.items():
        text = re.sub(rf"(?<![\w/=-]){option}(?![\w-])", name, text)
    return _OPTION.sub(_argument, _SET.sub(_hyperparameter, text))


def _hyperparameter(found: re.Match[str]) -> str:
    value = found["value"]
    plain = re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?|true|false|…", value) is not None
    shown = {"true": "True", "false": "False"}.get(value, value) if plain else f'"{value}"'
    return f'{"model_options" if found["model"] else "options"}={{"{found["name"]}": {shown}}}'


def _argument(found: re.Match[str]) -> str:
    name = found["name"].replace("-", "_")
    if found["number"] is not None:
        return f"{name}={found['number']}"
    if found["pair"] is not None:
        return f'{name}="{found["pair"]}"'
    return f"{name}=True" if found["name"] in _SWITCHES else name
