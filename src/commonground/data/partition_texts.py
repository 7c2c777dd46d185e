"""Partitions as texts."""

from __future__ import annotations

from commonground.data.feature_partition import Features
from commonground.data.partitions import IID, Column, Dirichlet, Labels, LogNormal, Partition, Shards
from commonground.errors import ConfigError
from commonground.partition_forms import FORMS, partition_values
from commonground.user_code import is_code, load_object

__all__ = ["is_own_partition", "parse_partition"]


def is_own_partition(text: str | None) -> bool:
    """Whether a partition's text names a function in a user's file; a column may have any name."""
    return text is not None and is_code(text) and text.strip().partition(":")[0] not in FORMS


def parse_partition(text: str, classes_per_client: int | None = None) -> Partition:
    """The partition that a text names.

    Args:
        text: ``iid``, ``shards``, ``shards:2,repeats=yes``, ``dirichlet:0.5``, ``lognormal``,
            ``lognormal:mean=148,sigma=1,min=50``, ``features:0.5``, ``column:hospital``, ``file.py:function`` of a
            :class:`Partition` of one's own, which is run; also whatever ``str`` of a partition gives.
        classes_per_client: S of ``shards`` and ``lognormal``.

    Raises:
        ConfigError: the text is none of these, or ``classes_per_client`` is missing, of no use, or contradicts it.

    >>> str(parse_partition("lognormal:mean=148,min=50", classes_per_client=3))
    'lognormal:mean=148,sigma=1,min=50,classes=3'
    """
    kind, values = (None, {}) if is_own_partition(text) else partition_values(text)
    if kind not in ("shards", "lognormal") and classes_per_client is not None:
        raise ConfigError(f"classes per client ({classes_per_client}) have no meaning for the partition {text!r}")
    if kind is None:
        function: Partition = load_object(text.strip(), "partition", "function")
        return function
    if kind == "column":
        return Column(values["name"])
    if kind == "iid":
        return IID()
    if kind == "labels":
        return Labels(values.get("test", "same"))
    if kind == "dirichlet":
        if "alpha" not in values:
            raise ConfigError("the dirichlet partition needs its alpha, as in dirichlet:0.5")
        return Dirichlet(values["alpha"], **({"minimum": values["min"]} if "min" in values else {}))
    if kind == "features":
        if "h" not in values:
            raise ConfigError("the features partition needs its h, as in features:0.5")
        return Features(values["h"])
    classes = _one_of(text, values.get("classes"), classes_per_client)
    if kind == "shards":
        if classes is None:
            raise ConfigError("the shards partition needs the classes per client, as in shards:2")
        return Shards(classes, values.get("repeats", False))
    return LogNormal(
        mean=values.get("mean"),
        sigma=values.get("sigma", LogNormal.sigma),
        minimum=values.get("min", max(LogNormal.minimum, classes or 0)),
        classes_per_client=classes,
        consecutive=values.get("consecutive", False),
        fewer=values.get("fewer", False),
    )


def _one_of(text: str, in_text: int | None, given: int | None) -> int | None:
    if in_text is not None and given is not None and in_text != given:
        raise ConfigError(f"partition {text!r} says {in_text} classes per client, the setting says {given}")
    return given if in_text is None else in_text
