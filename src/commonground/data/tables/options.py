"""What a user may say about a table."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any

from commonground.data.tables.kinds import Reading, parse_kind
from commonground.errors import ConfigError, shown
from commonground.name_lists import names_in, plain_name
from commonground.quoting import quoted
from commonground.suggest import meant

__all__ = ["TableOptions", "names_in", "table_options"]

SHARE = 0.25
"""Of each client's rows is held out, unless the user says otherwise."""

_FEW_ROWS = ("keep", "pool", "shared", "drop")
_WAYS = ("split_column", "time_column", "group_column")
_DRAWN = ("test_share", "test_seed")  # which rows are test rows where no column says it
_LACKING = ("missing_target", "missing_client")  # what becomes of rows that lack them
_OF_ROWS = (*_WAYS, *_DRAWN, *_LACKING)
_SCALINGS = ("pooled", "client", "none")


@dataclass(frozen=True)
class TableOptions:
    """How a table is read; all of it may be left out.

    Attributes:
        client_column: whom a row belongs to; ``file``, where a folder holds a file per client.
        drop: columns that are left out.
        text_column: the column or two that hold the texts, for a model ``hf:…``.
        kinds: what columns hold, by name, where that is not as it looks: one of
            :data:`~commonground.data.tables.kinds.KINDS`, or ``date:FORMAT``.
        separator, encoding: of a text file.
        scaling: by what numbers are scaled: ``pooled`` (mean and deviation of all clients' training rows), ``client``
            (of each client's own), ``none``, or ``bounds:NAME=LOW:HIGH,…``, which asks no client anything.
        few_rows: what becomes of clients with fewer rows than ``min_rows``: ``keep`` (they train like all others, and
            results name their figures beside those of all), ``pool`` (one client of them all), ``shared`` (they do not
            train and are served by the shared model) or ``drop`` (they are left out).
        min_rows: see ``few_rows``.
        split_column: says ``train`` or ``test``; by default a column ``split``, if there is one.
        time_column: a client's last rows by it are the test rows; it is no feature.
        group_column: a client's rows of one group are all training or all test rows; it is no feature.
        test_share: the share of each client's rows that is held out, where no column says which; by default a quarter.
        test_seed: which rows those are; by default the run's seed says it.
        image_size: of a folder of pictures: what all are resized to, as ``32`` or ``HEIGHTxWIDTH``.
        missing_target: what becomes of rows without a target: ``refuse`` the table, which is the default, or ``drop``
            them, counted.
        missing_client: the same of rows that the client column gives to nobody.

    Raises:
        ConfigError: a value is none of these, or two ways of splitting are asked for.
    """

    client_column: str | None = None
    drop: tuple[str, ...] = ()
    text_column: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    separator: str | None = None
    encoding: str | None = None
    scaling: str = "pooled"
    few_rows: str = "keep"
    min_rows: int = 2
    split_column: str | None = None
    time_column: str | None = None
    group_column: str | None = None
    test_share: float | None = None
    test_seed: int | None = None
    missing_target: str | None = None
    missing_client: str | None = None
    image_size: str | None = None

    def __post_init__(self) -> None:
        for name in ("client_column", *_WAYS):
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, plain_name(value))
        object.__setattr__(self, "drop", tuple(map(plain_name, self.drop)))
        object.__setattr__(self, "text_column", tuple(map(plain_name, self.text_column)))
        object.__setattr__(self, "kinds", {plain_name(name): kind for name, kind in self.kinds.items()})
        if self.scaling not in _SCALINGS and not self.scaling.startswith("bounds:"):
            near = meant(self.scaling.partition(":")[0], (*_SCALINGS, "bounds"))
            raise ConfigError(
                f"scaling is {quoted(self.scaling)}{near}; it is pooled, client, none or bounds:NAME=LOW:HIGH,…"
            )
        if self.scaling.startswith("bounds:"):
            assert self.bounds
        if len({*self.text_column}) < len(self.text_column):
            raise ConfigError(
                f"text_column names {quoted(self.text_column[0])} twice; two columns make a pair of texts"
            )
        if self.few_rows not in _FEW_ROWS:
            raise ConfigError(f"few_rows is {quoted(self.few_rows)}; it is one of {', '.join(_FEW_ROWS)}")
        for name in _LACKING:
            if (said := getattr(self, name)) not in (None, "refuse", "drop"):
                raise ConfigError(f"{name} is {quoted(said)}; it is drop or refuse")
        if self.min_rows < 2:
            raise ConfigError(f"min_rows is {self.min_rows}; a client needs at least 2 rows, to train and to test")
        if not 0 < self.share < 1:
            raise ConfigError(f"test_share is {self.test_share}; it must lie between 0 and 1")
        if self.test_seed is not None:
            whole = isinstance(self.test_seed, Integral) and not isinstance(self.test_seed, bool)
            if not whole or self.test_seed < 0:
                raise ConfigError(f"test_seed is {shown(self.test_seed)}; it is a whole number, 0 or above")
            object.__setattr__(self, "test_seed", int(self.test_seed))  # as files can have it
        ways = [name for name in _WAYS if getattr(self, name)]
        if len(ways) > 1:
            raise ConfigError(f"{ways[0]} and {ways[1]} both say which rows are test rows; give one of them")
        if self.split_column:
            self.check_drawn(self.split_column, "leave one of them out")
        if self.time_column and self.test_seed is not None:
            raise ConfigError(
                f"the last rows by the column {quoted(self.time_column)} are test rows, so that a test seed of "
                f"{self.test_seed} says nothing; leave out one of them"
            )
        assert self.readings is not None
        assert self.image_size is None or self.size

    def check_drawn(self, column: str, hint: str, where: str = "") -> None:
        """Refuse a share or a seed of test rows beside a column that says which they are.

        Args:
            column: its name.
            hint: what to do; ``WHAT`` in it stands for share or seed.
            where: what the sentence begins with.

        Raises:
            ConfigError: says so, and what to do about it.
        """
        for what, value in (("share", self.test_share), ("seed", self.test_seed)):
            if value is not None:
                raise ConfigError(
                    f"{where}the column {quoted(column)} says which rows are test rows, so that a test {what} of "
                    f"{value} says nothing; {hint.replace('WHAT', what)}"
                )

    @property
    def of_rows(self) -> dict[str, Any]:
        """What is said of which rows are test rows and which are left out, by name."""
        return {name: value for name in _OF_ROWS if (value := getattr(self, name)) != getattr(TableOptions, name)}

    def as_asked(self, before: Mapping[str, Any], columns: Collection[str]) -> tuple[TableOptions, list[str]]:
        """These options for another table, which is divided as a first one was unless they say otherwise.

        Args:
            before: what the first one's options said (:attr:`of_rows`), and as ``kinds`` how its times were read.
            columns: of the other table.

        Returns:
            the options, and what is worth knowing of them.
        """
        kept = {n: v for n, v in before.items() if n in _LACKING and getattr(self, n) is None}
        if self.client_column is None:
            kept.pop("missing_client", None)
        drawn = {n: v for n, v in before.items() if n in _DRAWN and getattr(self, n) is None}
        times: dict[str, Any] = {"kinds": {**before["kinds"], **self.kinds}} if "kinds" in before else {}
        way = next((name for name in _WAYS if getattr(self, name) is not None), None)
        if way is not None:
            same = getattr(self, way) == before.get(way)
            return replace(self, **kept, **(drawn if same else {}), **(times if same else {})), []
        if self.test_share is not None:  # of the rows, at random
            return replace(self, **kept, **drawn), []
        lacking = [before[name] for name in _WAYS if name in before and before[name] not in columns]
        ways = {name: before[name] for name in _WAYS if name in before and not lacking}
        by_column = not ways and "split" in columns and "split" not in self.drop
        if by_column:
            drawn = {}
        made = replace(self, **kept, **ways, **drawn, **({} if lacking else times))
        here = "the column 'split' does" if by_column else f"{made.share:.0%} at random are"
        return made, [f"no column {quoted(name)}, which says the run's test rows; here {here}" for name in lacking[:1]]

    @property
    def share(self) -> float:
        """The share of rows that is held out where no column says which."""
        return SHARE if self.test_share is None else self.test_share

    def seed(self, of_run: int) -> int:
        """By which test rows are drawn where no column says them."""
        return of_run if self.test_seed is None else self.test_seed

    @property
    def readings(self) -> dict[str, Reading]:
        """The kinds, understood."""
        return {name: parse_kind(name, kind) for name, kind in self.kinds.items()}

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of pictures, if they are said."""
        if self.image_size is None:
            return None
        sides = str(self.image_size).lower().replace("×", "x").split("x")
        if len(sides) > 2 or not all(side.isdecimal() and 1 <= int(side) <= 4096 for side in sides):
            raise ConfigError(f"image_size is {quoted(str(self.image_size))}; it is as 32 or HEIGHTxWIDTH, up to 4096")
        return int(sides[0]), int(sides[-1])

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """What numbers are scaled by, by column; empty unless ``scaling`` names bounds."""
        found = {}
        for part in self.scaling.removeprefix("bounds:").split(",") if self.scaling.startswith("bounds:") else []:
            name, _, ends = part.rpartition("=")
            try:
                low, high = (float(end) for end in ends.split(":"))
            except ValueError:
                low = high = math.nan
            if not (name and math.isfinite(low) and math.isfinite(high) and low < high):
                raise ConfigError(f"the bounds {quoted(part)} are not of the form NAME=LOW:HIGH with LOW below HIGH")
            found[plain_name(name)] = (low, high)
        return found


def table_options(values: Mapping[str, Any]) -> TableOptions:
    """Options from keywords or flags, lists of names also as texts separated by commas, ``kinds`` as ``a=date,b=id``.

    Raises:
        ConfigError: there is no such option, or as :class:`TableOptions`.
    """
    known = [option.name for option in fields(TableOptions)]
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            there = f"of how a table is read there are {', '.join(known)}"
            raise ConfigError(f"unknown setting {quoted(name)}{meant(name, known)}; {there}")
        if value is None:
            continue
        if name in ("drop", "text_column"):
            value = names_in(value) if isinstance(value, str) else tuple(value)
        if name == "kinds" and isinstance(value, str):
            value = _pairs(value)
        given[name] = value
    return TableOptions(**given)


def _pairs(text: str) -> dict[str, str]:
    found = {}
    for part in names_in(text):
        name, equals, kind = part.partition("=")
        if not equals:
            raise ConfigError(f"{quoted(part)} is not of the form NAME=KIND")
        found[name.strip()] = kind.strip()
    return found
