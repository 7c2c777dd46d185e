"""Partitions as texts."""

from __future__ import annotations

from typing import Any

from commonground.catalogue import unknown_partition
from commonground.data.feature_partition import Features
from commonground.data.partitions import IID, Column, Dirichlet, Labels, LogNormal, Partition, Shards
from commonground.errors import ConfigError

__all__ = ["parse_partition"]


FORMS = {
    "iid": "iid",
    "shards": "shards:CLASSES,repeats=no",
    "labels": "labels",
    "dirichlet": "dirichlet:ALPHA",
    "lognormal": "lognormal:mean=M,sigma=S,min=K,classes=C,consecutive=no,fewer=no",
    "features": "features:H",
    "column": "column:NAME",
}
"""How a partition is written, by its first word."""


def parse_partition(text: str, classes_per_client: int | None = None) -> Partition:
    """The partition that a text names.

    Args:
        text: ``iid``, ``shards``, ``shards:2,repeats=yes``, ``dirichlet:0.5``, ``lognormal``,
            ``lognormal:mean=148,sigma=1,min=50``, ``features:0.5``, ``column:hospital``;
            also whatever ``str`` of a partition gives.
        classes_per_client: S of ``shards`` and ``lognormal``.

    Raises:
        ConfigError: the text is none of these, or ``classes_per_client`` is missing, of no use, or contradicts it.

    >>> str(parse_partition("lognormal:mean=148,min=50", classes_per_client=3))
    'lognormal:mean=148,sigma=1,min=50,classes=3'
    """
    kind, _, rest = text.strip().partition(":")
    if kind == "column":
        _no_classes(text, classes_per_client)
        return Column(rest)
    if kind == "iid" and not rest:
        _no_classes(text, classes_per_client)
        return IID()
    if kind == "shards":
        values = _values(text, rest, {"classes": int, "repeats": str}, "classes")
        classes = _one_of(text, values.get("classes"), classes_per_client)
        if classes is None:
            raise ConfigError("the shards partition needs the classes per client, as in shards:2")
        return Shards(int(classes), _yes_or_no(text, "repeats", values.get("repeats", "no")))
    if kind == "labels":
        _no_classes(text, classes_per_client)
        return Labels(_values(text, rest, {"test": str}).get("test", "same"))
    if kind == "dirichlet":
        _no_classes(text, classes_per_client)
        values = _values(text, rest, {"alpha": float, "min": int}, "alpha")
        if "alpha" not in values:
            raise ConfigError("the dirichlet partition needs its alpha, as in dirichlet:0.5")
        return Dirichlet(values["alpha"], **({"minimum": int(values["min"])} if "min" in values else {}))
    if kind == "features":
        _no_classes(text, classes_per_client)
        values = _values(text, rest, {"h": float}, "h")
        if "h" not in values:
            raise ConfigError("the features partition needs its h, as in features:0.5")
        return Features(values["h"])
    if kind == "lognormal":
        kinds = {"mean": float, "sigma": float, "min": int, "classes": int, "consecutive": str, "fewer": str}
        values = _values(text, rest, kinds)
        classes = _one_of(text, values.get("classes"), classes_per_client)
        return LogNormal(
            mean=values.get("mean"),
            sigma=values.get("sigma", LogNormal.sigma),
            minimum=int(values.get("min", max(LogNormal.minimum, classes or 0))),
            classes_per_client=classes,
            consecutive=_yes_or_no(text, "consecutive", values.get("consecutive", "no")),
            fewer=_yes_or_no(text, "fewer", values.get("fewer", "no")),
        )
    raise unknown_partition(text)


def _values(text: str, rest: str, kinds: dict[str, type], bare: str | None = None) -> dict[str, Any]:
    """``key=value`` parts by key; one part may be a value alone, which then belongs to ``bare``."""
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            key, value = bare or key, key
        if key not in kinds or key in values or not value:
            raise ConfigError(
                f"partition {text!r}: {part!r} is not understood; the forms are: {', '.join(FORMS.values())}"
            )
        try:
            values[key] = kinds[key](value)
        except ValueError:
            kind = "whole number" if kinds[key] is int else "number"
            raise ConfigError(f"partition {text!r}: {key} must be a {kind}, not {value!r}") from None
    return values


def _yes_or_no(text: str, key: str, value: str) -> bool:
    if value not in ("yes", "no"):
        raise ConfigError(f"partition {text!r}: {key} is yes or no, not {value!r}")
    return value == "yes"


def _one_of(text: str, in_text: int | None, given: int | None) -> int | None:
    if in_text is not None and given is not None and in_text != given:
        raise ConfigError(f"partition {text!r} says {in_text} classes per client, the setting says {given}")
    return given if in_text is None else in_text


def _no_classes(text: str, given: int | None) -> None:
    if given is not None:
        raise ConfigError(f"classes per client ({given}) have no meaning for the partition {text!r}")
