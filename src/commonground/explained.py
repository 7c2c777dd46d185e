"""What the settings of a class are, read off its docstring and its annotations: the one place where they are said.

A setting's meaning stands under ``Args:`` of the class or of one it derives from; its default and what it may be
stand where it is defined.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from commonground.declared import NOTHING, Parameter

__all__ = ["Setting", "paragraphs", "settings_from", "settings_of"]

_ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (.*)")
_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
_KINDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: as it is given.
        meaning: what it is.
        default: as text; ``auto`` where it is left to us.
        values: what it may be, as text; empty where its type says nothing.
    """

    name: str
    meaning: str
    default: str
    values: str


def settings_of(cls: type, skip: tuple[str, ...] = ()) -> list[Setting]:
    """The fields of a dataclass, or the arguments of another class's constructor, in their order.

    Args:
        cls: the class.
        skip: arguments that are no settings.
    """
    if is_dataclass(cls):
        hints = get_type_hints(cls, include_extras=True)
        given = {f.name: f.default if f.default is not MISSING else NOTHING for f in fields(cls)}
    else:
        parameters = [p for p in inspect.signature(cls, eval_str=True).parameters.values() if p.kind != p.VAR_KEYWORD]
        hints = {p.name: p.annotation for p in parameters}
        given = {p.name: NOTHING if p.default is p.empty else p.default for p in parameters}
    found = [Parameter(name, hints.get(name), value) for name, value in given.items() if name not in skip]
    return settings_from(found, [each.__dict__.get("__doc__") or "" for each in cls.__mro__])


def settings_from(parameters: Iterable[Parameter], docs: Sequence[str]) -> list[Setting]:
    """Settings of a class that is known by what its file declares.

    Args:
        parameters: its fields or arguments.
        docs: its docstring, then those of what it derives from.
    """
    said = _meanings(docs)
    return [Setting(p.name, said.get(p.name, ""), _default(p.default), _values(p.annotation)) for p in parameters]


def _meanings(docs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for doc in reversed(docs):
        names: list[str] = []
        for line in inspect.cleandoc(doc).partition("Args:\n")[2].splitlines():
            entry = _ENTRY.fullmatch(line)
            if entry is not None:
                names = entry[1].split(", ")
                found |= dict.fromkeys(names, _plain(entry[2]))
            elif line.startswith(" " * 8):
                found |= {name: f"{found[name]} {_plain(line.strip())}" for name in names}
            elif line:
                break
    return found


def paragraphs(doc: str | None) -> list[str]:
    """A docstring before its ``Args:``, a paragraph each, without markup."""
    text = inspect.cleandoc(doc or "").partition("\nArgs:\n")[0]
    return [_plain(part) for part in text.strip().split("\n\n")]


def _plain(text: str) -> str:
    """Without the marks of code and references: ``x`` and :class:`~a.b.X` are x and X."""
    text = re.sub(r":\w+:`~?(?:[^`]*\.)?([^`.]+)`", r"\1", text)
    return text.replace("``", "")


def _default(value: Any) -> str:
    if value is None or value is NOTHING:
        return "auto" if value is None else "…"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(annotation: Any) -> str:
    """What a setting may be."""
    if annotation is NOTHING:
        return ""
    try:
        return _of_schema(TypeAdapter(annotation).json_schema())
    except (PydanticSchemaGenerationError, PydanticUserError):
        return ""


def _of_schema(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        parts = [_of_schema(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(part for part in parts if part))
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of: {_of_schema(schema.get('items', {}))}"
    bounds = [f"{sign} {_number(schema[key])}" for key, sign in _BOUNDS.items() if key in schema]
    return " ".join([_KINDS.get(schema.get("type", ""), ""), ", ".join(bounds)]).strip()


def _number(bound: float) -> str:
    """As it was written: pydantic tells the bound 0 of a number as 0.0 in some versions."""
    return f"{int(bound) if float(bound).is_integer() else bound:,}"
