"""How an experiment is asked for: its settings, and the request that may change them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from rich.console import Console
from rich.progress import track

from commonground.config import one_sentence
from commonground.errors import ConfigError
from commonground.terminal import moves

__all__ = ["CPU", "Request", "Scale", "Settings", "value_for"]

Scale = Literal["small", "paper"]
CPU = torch.device("cpu")


class Settings(BaseModel):
    """The numbers an experiment is run with: derive from it, one field each; every one can be set with ``--set``.

    One value will do where a field takes several. A field may have other names: the papers do not agree on letters.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    also: ClassVar[Mapping[str, str]] = {}
    """Other names of fields, with the fields they stand for; a field's own name goes before it."""

    @model_validator(mode="before")
    @classmethod
    def _one_for_several(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: (value,) if _is_one_of_several(cls, key, value) else value for key, value in given.items()}

    @classmethod
    def known_as(cls) -> dict[str, str]:
        """Everything a setting may be called, its fields' own names first, with the fields."""
        own = {name: name for name in cls.model_fields}
        return own | {name: field for name, field in cls.also.items() if name not in own and field in own}

    @classmethod
    def named(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The same settings under the fields' own names.

        Raises:
            ConfigError: a field is given by two names.
        """
        names, fields = cls.known_as(), dict[str, str]()
        for name in given:
            field = names.get(name, name)
            if field in fields:
                raise ConfigError(f"'{fields[field]}' and '{name}' are one setting, {field}; give it once")
            fields[field] = name
        return {field: given[name] for field, name in fields.items()}


def _is_one_of_several(settings: type[Settings], name: str, value: Any) -> bool:
    """Whether this is a single value for a field that is a tuple of any length."""
    if name not in settings.model_fields or value is None or isinstance(value, list | tuple | Mapping):
        return False
    annotation = settings.model_fields[name].annotation
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(get_origin(kind) is tuple and get_args(kind)[1:] == (Ellipsis,) for kind in map(_bare, kinds))


def _bare(kind: Any) -> Any:
    """A type without what is said about it."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def value_for(values: Any, key: str, name: str, whose: str) -> Any:
    """A setting's value where it may be one value for all or a table of values.

    Args:
        values: the setting.
        key: which of the table's.
        name: of the setting.
        whose: value it is, for the error.

    Raises:
        ConfigError: the table lacks it.
    """
    if not isinstance(values, Mapping):
        return values
    if key not in values:
        raise ConfigError(f"{name} has no value for {whose}; it has {', '.join(values) or 'none'}")
    return values[key]


S = TypeVar("S", bound=Settings)
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """How an experiment is asked for.

    Attributes:
        folder: for what it leaves behind.
        scale: the paper's own setting, or one that fits two cores.
        seed: the first seed.
        seeds: number of seeds, or None for the experiment's own.
        data_dir: folder of the data files.
        quiet: show no progress.
        overrides: settings to use instead of the experiment's, by name.
        device: where to compute.
        precision: of a table's runs, how products are computed (``fp32``, ``tf32``, ``bf16``).
        columns, methods, variants: of a table, what is to be measured; all columns and methods if empty, and the
            paper's own setting.
        minutes: after which nothing more is begun, and what is going on is kept for the next time.
        jobs: processes that measure a table's runs side by side.
        workers: worker processes of a run, None for the run's own choice.
    """

    folder: Path
    scale: Scale = "small"
    seed: int = 0
    seeds: int | None = None
    data_dir: str | None = None
    quiet: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device = CPU
    precision: str = "fp32"
    columns: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    minutes: float | None = None
    jobs: int = 1
    workers: int | None = None

    @property
    def until(self) -> float | None:
        """The moment of :func:`time.monotonic` at which to stop, counted from this call."""
        return None if self.minutes is None else time.monotonic() + 60 * self.minutes

    @property
    def going(self) -> Callable[[], bool] | None:
        """Says whether there is time left, counted from this call; None where there is no limit."""
        until = self.until
        return None if until is None else lambda: time.monotonic() < until

    def choose(self, small: S, paper: S) -> S:
        """The settings of the scale asked for, with what the user overrides.

        Raises:
            ConfigError: an override is unknown or does not fit.
        """
        chosen = small if self.scale == "small" else paper
        try:
            return type(chosen).model_validate({**chosen.model_dump(), **chosen.named(self.overrides)})
        except ValidationError as error:
            raise ConfigError(one_sentence(error, chosen.known_as())) from None

    def seed_range(self, default: int) -> range:
        """The seeds to use."""
        return range(self.seed, self.seed + (self.seeds or default))

    def progress(self, items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
        """Iterate with a progress bar on a terminal's standard error."""
        console = Console(stderr=True)
        if self.quiet or not moves(console):
            return iter(items)
        return iter(track(items, what, total=total, console=console, transient=True))
