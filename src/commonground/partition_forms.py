"""How partitions are written: what a text says, before there are data to deal."""

from __future__ import annotations

from typing import Any

from commonground.errors import ConfigError
from commonground.suggest import meant

__all__ = ["FORMS", "partition_values"]

FORMS = {
    "iid": "iid",
    "shards": "shards:CLASSES,repeats=no",
    "labels": "labels",
    "dirichlet": "dirichlet:ALPHA",
    "lognormal": "lognormal:mean=M,sigma=S,min=K,classes=C,consecutive=no,fewer=no",
    "features": "features:H",
    "column": "column:NAME",
}
"""How a partition is written, by its first word; a function of the user's is named as ``file.py:FUNCTION``."""

_FORMS = ", ".join([*FORMS.values(), "file.py:FUNCTION"])

_VALUES: dict[str, dict[str, type]] = {
    "iid": {},
    "shards": {"classes": int, "repeats": bool},
    "labels": {"test": str},
    "dirichlet": {"alpha": float, "min": int},
    "lognormal": {"mean": float, "sigma": float, "min": int, "classes": int, "consecutive": bool, "fewer": bool},
    "features": {"h": float},
}
_ALONE = {"shards": "classes", "dirichlet": "alpha", "features": "h"}
"""To which of its values one belongs that is written without a name."""


def partition_values(text: str) -> tuple[str, dict[str, Any]]:
    """The first word of a partition's text, and the values that it gives; of ``column:NAME`` the ``name``.

    Which of them it needs, and whether data have as many classes, is seen where it is made and dealt.

    Raises:
        ConfigError: it begins as no partition does, or goes on as this one does not.

    >>> partition_values("lognormal:mean=148,fewer=yes")
    ('lognormal', {'mean': 148.0, 'fewer': True})
    """
    kind, _, rest = text.strip().partition(":")
    kind = kind.strip()
    if kind not in FORMS:
        raise ConfigError(f"unknown partition {text!r}{meant(kind, FORMS)}; it is one of: {_FORMS}")
    if kind == "column":
        return kind, {"name": rest}
    kinds, values = _VALUES[kind], dict[str, Any]()
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            key, value = _ALONE.get(kind, key), key
        if key not in kinds or key in values or not value:
            raise ConfigError(f"partition {text!r}: {part!r} is not understood; the forms are: {_FORMS}")
        values[key] = _yes_or_no(text, key, value) if kinds[key] is bool else _number(text, key, value, kinds[key])
    return kind, values


def _number(text: str, key: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        what = "whole number" if kind is int else "number"
        raise ConfigError(f"partition {text!r}: {key} must be a {what}, not {value!r}") from None


def _yes_or_no(text: str, key: str, value: str) -> bool:
    if value not in ("yes", "no"):
        raise ConfigError(f"partition {text!r}: {key} is yes or no, not {value!r}")
    return value == "yes"
