"""What a run knows of its table: columns by name, how their cells become a model's inputs, and the target.

It is plain JSON (``schema.json``): nothing in it is code, and the transformers are built anew from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from commonground.access import reason
from commonground.counted import counted
from commonground.data.arrays import Preprocess
from commonground.data.tables.kinds import Reading
from commonground.errors import ConfigError, DataError
from commonground.name_lists import plain_name
from commonground.quoting import quoted

__all__ = ["ColumnSchema", "TableSchema", "one_sided"]

_FORMAT = 1


@dataclass(frozen=True)
class ColumnSchema:
    """A feature.

    Attributes:
        name: the column's.
        kind: ``number``, ``boolean``, ``date`` or ``category``.
        decimal, order: how cells are read (:class:`~commonground.data.tables.kinds.Reading`).
        categories: those that get an input of their own; all others have zeros in all of these.
        apart: others of training rows, that are spelt like one of them (``K0`` and ``k0``) and are not it.
        missing: whether training rows lacked it, which is then an input of its own.
        fill: what stands for a missing number, in the column's own units (for dates, days since 1970).
        times: whether dates have a time of day.
        low, high: of the training rows, for warnings.
        truths: whether a column of numbers held truths in training, as 0 and 1; elsewhere a truth is no number.
        seconds: whether it held durations, which are numbers of seconds; None if an earlier version wrote the schema,
            which took them for numbers in the unit that they were stored in.
        clocks: whether it held times of day or durations, which a plain number in a text is not, as a time is no plain
            number; None if an earlier version wrote the schema: then most cells of a file say it.
        affix: the unit that its numbers had beside them.
        offset: what is taken off numbers before they become inputs in single precision, which would round away what
            they differ by; 0 where it would not.
    """

    name: str
    kind: str
    decimal: str = "point"
    order: str = ""
    categories: tuple[str, ...] = ()
    missing: bool = False
    fill: float = 0.0
    times: bool = False
    low: float | None = None
    high: float | None = None
    truths: bool = False
    seconds: bool | None = False
    apart: tuple[str, ...] = ()
    offset: float = 0.0
    clocks: bool | None = None
    affix: str = ""

    @property
    def reading(self) -> Reading:
        """How cells are read."""
        return Reading(self.kind, self.decimal, self.order, clocks=self.clocks, affix=self.affix)

    def written(self, said: Reading) -> ColumnSchema:
        """The same column where numbers and dates are written as somebody says; its truths may be numbers then."""
        if said.kind != self.kind:
            raise ConfigError(
                f"the column {quoted(self.name)} cannot be read as {said.kind}: it was read as {self.kind} in training"
            )
        return replace(self, decimal=said.decimal, order=said.order or self.order, truths=True)

    @property
    def parts(self) -> list[str]:
        """Of dates: what comes beside the number of days."""
        if self.kind != "date":
            return []
        cycles = ("year", "week", *(("day",) if self.times else ()))
        return [f"{self.name}: {wave} of {cycle}" for cycle in cycles for wave in ("sine", "cosine")]


def _plainly_named(values: dict[str, Any]) -> dict[str, Any]:
    """A schema's values, its columns named as tables' are; earlier versions took names as a file has them."""
    for name in ("targets", "ids", "beside", "filled"):
        values[name] = [plain_name(one) for one in values.get(name, ())]
    values["features"] = [{**one, "name": plain_name(one["name"])} for one in values["features"]]
    values["dropped"] = {plain_name(one): why for one, why in values.get("dropped", {}).items()}
    if values.get("client_column"):
        values["client_column"] = plain_name(values["client_column"])
    return values


def one_sided(few: Mapping[str, Any]) -> str:
    """What clients with few rows are beside that, if some have enough and yet none to train or none to test with.

    Args:
        few: as :attr:`TableSchema.few_rows`.
    """
    return " or without training or test rows" if few.get("one_sided") else ""


@dataclass(frozen=True)
class TableSchema:
    """A table's columns and what becomes of them.

    Attributes:
        features: columns that the model sees, in the order of the table.
        targets: columns that are predicted.
        task: by name.
        class_names: of a classification.
        client_column: whom a row belongs to.
        dropped: columns that the model does not see, and why.
        ids: those of them that name a row, which predictions repeat.
        mean, std: of every input (:attr:`inputs`): what it is scaled by.
        scaling: whose statistics these are (:class:`~commonground.data.tables.options.TableOptions`).
        client_scales: under ``client``, mean and deviation of every client by name.
        few_rows: what became of clients with few rows: ``how``, ``min_rows``, ``clients`` (their names), ``rows``, and
            how many of them have enough, of which all are training or all test rows (``one_sided``).
        split: how test rows were chosen.
        beside: columns that said so, which are no features.
        asked: what the options said of which rows are test rows and which are left out, by name; of texts, also their
            columns.
        filled: features of which a row lacks the number.
        missing_targets: rows that were left out because they lack a target.
        target_decimals: how the numbers of each target are written; empty for classes.
        target_affixes: the unit that each one's numbers have beside them; empty for classes, as of earlier versions.
        notes: sentences for people about how the table was read.
    """

    features: tuple[ColumnSchema, ...]
    targets: tuple[str, ...]
    task: str
    class_names: tuple[str, ...]
    client_column: str | None = None
    dropped: Mapping[str, str] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    scaling: str = "pooled"
    client_scales: Mapping[str, Any] = field(default_factory=dict)
    few_rows: Mapping[str, Any] = field(default_factory=dict)
    split: str = ""
    beside: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    target_decimals: tuple[str, ...] = ()
    target_affixes: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    missing_targets: int = 0
    notes: tuple[str, ...] = ()

    def written(self, said: Mapping[str, Reading]) -> TableSchema:
        """The same columns in a file that writes numbers and dates in its own way.

        Args:
            said: how columns are written there, by name; of all others, as here.

        Raises:
            ConfigError: one is said to hold something else.
        """
        ways = zip(self.targets, self.target_decimals, strict=False)
        return replace(
            self,
            features=tuple(one.written(said[one.name]) if one.name in said else one for one in self.features),
            target_decimals=tuple(said[name].decimal if name in said else decimal for name, decimal in ways),
        )

    def of_kind(self, *kinds: str) -> list[ColumnSchema]:
        """The features of some kinds, in the table's order."""
        return [column for column in self.features if column.kind in kinds]

    @property
    def inputs(self) -> list[str]:
        """The model's inputs in their order: numbers and days, whether they are missing; truths, likewise; parts of
        dates; an input per category.
        """
        return [name for name, _ in self._inputs()]

    @property
    def input_places(self) -> dict[str, list[int]]:
        """For every feature, which of :attr:`inputs` it makes; empty for one that makes none."""
        places: dict[str, list[int]] = {column.name: [] for column in self.features}
        for place, (_, column) in enumerate(self._inputs()):
            places[column].append(place)
        return places

    def _inputs(self) -> list[tuple[str, str]]:
        """Every input with the column that it is made of."""
        made = []
        for kinds in (("number", "date"), ("boolean",)):
            columns = self.of_kind(*kinds)
            made += [(column.name, column.name) for column in columns]
            made += [(f"{column.name} is missing", column.name) for column in columns if column.missing]
        made += [(part, column.name) for column in self.of_kind("date") for part in column.parts]
        for column in self.of_kind("category"):
            made += [(f"{column.name} = {category}", column.name) for category in column.categories]
            made += [(f"{column.name} is missing", column.name)] if column.missing else []
        return made

    def reads_as(self, other: TableSchema) -> bool:
        """Whether this table's rows were made into the inputs that another schema makes of them, but for what scales
        them. By what missing cells are filled matters where some are.
        """
        kept = ("name", "kind", "categories", "missing", "times", "offset")
        pairs = zip(self.features, other.features, strict=False)
        alike = all(getattr(a, name) == getattr(b, name) for a, b in pairs for name in kept)
        filled = {c.name: c.fill for c in other.features}
        same_fills = all(c.fill == filled[c.name] for c in self.features if c.name in self.filled and c.name in filled)
        same = len(self.features) == len(other.features) and alike and same_fills
        return same and (self.scaling == "client") == (other.scaling == "client")

    @property
    def preprocess(self) -> Preprocess:
        """What scales the inputs on their way into the model; by one client's statistics in double precision, as its
        rows were scaled in training.
        """
        return Preprocess(mean=self.mean, std=self.std, double=self.scaling == "client" and bool(self.mean))

    @property
    def needed(self) -> list[str]:
        """Columns that a prediction needs."""
        return [column.name for column in self.features]

    def summary(self) -> dict[str, Any]:
        """For a run's summary: how the table was read and split, and how many clients had few rows."""
        few = {**self.few_rows, "clients": len(self.few_rows["clients"])} if self.few_rows else {}
        lacking = {"missing_targets": self.missing_targets} if self.missing_targets else {}
        said = {"notes": list(self.notes), "test_rows": self.split, "scaling": self.scaling, "few_rows": few}
        return {**said, **lacking}

    @staticmethod
    def sentences(summary: Mapping[str, Any]) -> list[str]:
        """What :meth:`summary` says, for people; of texts that are no user's table there may be notes or nothing."""
        said = [f"{note[0].upper()}{note[1:]}." for note in summary.get("notes", ())]
        said += [f"Test rows: {summary['test_rows']}."] if summary.get("test_rows") else []
        few = summary.get("few_rows", {})
        if few.get("clients"):
            one = few["clients"] == 1
            became = {
                "pool": "train as one client",
                "shared": f"took no part and {'is' if one else 'are'} served by the global model",
                "drop": f"{'is' if one else 'are'} left out",
                "keep": "is a client as all others" if one else "are clients as all others",
            }[few["how"]]
            rows = f"fewer than {few['min_rows']} rows{one_sided(few)} ({counted(few['rows'], 'row')} in all)"
            said.append(f"{counted(few['clients'], 'client')} with {rows} {became}.")
        return said

    def to_json(self) -> str:
        """As text; :meth:`from_json` gives an equal schema back."""
        plain = vars(self) | {"features": [vars(column) for column in self.features]}
        return json.dumps({"format": _FORMAT, **plain}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> TableSchema:
        """From a file, a run's ``schema.json``.

        Raises:
            ConfigError: it cannot be read.
            DataError: it is no schema.
        """
        try:
            return cls.from_json(path.read_text("utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the schema '{path}' cannot be read: {reason(error, path)}") from None

    @classmethod
    def from_json(cls, text: str, where: str = "schema.json") -> TableSchema:
        """From text.

        Raises:
            DataError: it is no schema.
        """
        try:
            values = _plainly_named(dict(json.loads(text)))
            if values.pop("format") != _FORMAT:
                raise ValueError("another version wrote it")
            columns = tuple(
                # Earlier versions did not say whether numbers were truths or durations, and took both for numbers.
                ColumnSchema(
                    **{
                        "truths": column["kind"] == "number",
                        "seconds": None,
                        **column,
                        "categories": tuple(column["categories"]),
                        "apart": tuple(column.get("apart", ())),
                    }
                )
                for column in values["features"]
            )
            tuples = {f.name for f in fields(cls) if str(f.type).startswith("tuple")}
            plain: dict[str, Any] = {name: tuple(v) if name in tuples else v for name, v in values.items()}
            plain["features"] = columns
            return cls(**plain)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"'{where}' is no schema of a table: {error}") from None
