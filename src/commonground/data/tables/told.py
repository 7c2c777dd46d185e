"""What clients with tables and their server say to each other, until all read their tables alike: typed, of no row.

1. A client says which columns it has and what they look like (:class:`Columns`): names and kinds, no cell.
2. The server says how all are to be read (:class:`StatisticsRequest`), and the client tells sums over its training rows
   and which categories it has (:class:`Statistics`).
3. The server says what all columns become (:class:`Agreed`), from which every client makes the same schema.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from commonground.data.tables.kinds import Reading
from commonground.data.tables.schema import ColumnSchema, TableSchema
from commonground.errors import DataError
from commonground.quoting import escaped, quoted

__all__ = [
    "MOST_WORDS",
    "Agreed",
    "ColumnStatistics",
    "ColumnTold",
    "Columns",
    "Feature",
    "Statistics",
    "StatisticsRequest",
    "read_told",
]

MOST_WORDS = 10_000
"""Categories of a column that a client tells; of more, the most frequent."""

MOST_COLUMNS = 100_000
LONGEST = 1000  # characters of a name or a category

Name = Annotated[str, Field(min_length=1, max_length=LONGEST)]
Words = Annotated[tuple[Name, ...], Field(max_length=MOST_WORDS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1 << 40)]
Decimal = Literal["point", "comma", "thousands"]
Affix = Annotated[str, Field(max_length=100)]
Units = Annotated[tuple[Affix, ...], Field(max_length=100)]
Order = Annotated[str, Field(max_length=100)]
Version = Annotated[str, Field(max_length=100)]
Targets = Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)]
Classes = Annotated[tuple[Name, ...], Field(min_length=1, max_length=10_000_000)]


class _Told(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ColumnTold(_Told):
    """A column and how its cells look to one client, or how all are to read them.

    Attributes:
        name: its name.
        kind, decimal, order: see :class:`~commonground.data.tables.kinds.Reading`. A client whose numbers or dates are
            written otherwise reads them as its own are.
        truths: whether numbers are truths in somebody's file, which says so; elsewhere a truth is no number.
        clocks: of numbers, whether they are times of day or durations; None for a client that stores numbers as such.
        affix: of numbers, the unit beside them.
    """

    name: Name
    kind: Literal["number", "category", "boolean", "date", "text", "id", "constant", "units"]
    decimal: Decimal = "point"
    order: Order = ""
    truths: bool = False
    clocks: bool | None = None
    affix: Affix = ""

    @property
    def reading(self) -> Reading:
        """How cells are read."""
        return Reading(self.kind, self.decimal, self.order, clocks=self.clocks, affix=self.affix)


Cells = Annotated[tuple[ColumnTold, ...], Field(max_length=MOST_COLUMNS)]


class Columns(_Told):
    """What a client says first: which columns its table has, and what is to be predicted.

    Attributes:
        name: the client's.
        train: training rows.
        columns: those that may become inputs.
        targets: the target columns.
        task: by name.
        class_names: of a classification, those that it has; else the targets.
        target_decimals, target_affixes: how the numbers of each target are written; empty for classes.
        doubtful: columns and targets whose cells leave open how they are written (1.234 may be more than a thousand,
            and 03/04/2024 a day of March), where the client's owner does not say.
        units: those of columns whose numbers have several, which are no inputs, by name.
        version: of the client's software.
    """

    name: Name
    train: Annotated[int, Field(ge=1, le=1 << 40)]
    columns: Cells
    targets: Targets
    task: Name
    class_names: Classes
    target_decimals: tuple[Decimal, ...]
    target_affixes: tuple[Affix, ...] = ()
    doubtful: Annotated[tuple[Name, ...], Field(max_length=MOST_COLUMNS)] = ()
    units: Annotated[dict[Name, Units], Field(max_length=MOST_COLUMNS)] = Field(default_factory=dict)
    version: Version = ""

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError("a column is named twice")
        if {len(self.target_decimals), len(self.target_affixes)} - {0, len(self.targets)}:
            raise ValueError("the targets are not as many as what is told of them")
        return self


class StatisticsRequest(_Told):
    """What the server asks then.

    Attributes:
        columns: how all are to read them.
        counted: columns of categories whose rows are to be counted, since there are too many categories for all.
    """

    columns: Cells
    counted: Annotated[tuple[Name, ...], Field(max_length=MOST_COLUMNS)] = ()


class ColumnStatistics(_Told):
    """What a client tells of a column, over its training rows.

    Attributes:
        present, missing: rows with and without a value; 0 if the client holds back what it has.
        mean, squares: of numbers and days in single precision, their mean and Σ(value − mean)²; of truths the mean.
        times: whether dates have a time of day.
        words: the categories.
        rows: of each, if they were asked for.
    """

    present: Count
    missing: Count
    mean: Finite = 0.0
    squares: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    times: bool = False
    words: Words = ()
    rows: Annotated[tuple[Count, ...], Field(max_length=MOST_WORDS)] = ()

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if len(set(self.words)) < len(self.words) or (self.rows and len(self.rows) != len(self.words)):
            raise ValueError("its categories are told twice, or not as often as their rows")
        return self


class Statistics(_Told):
    """What a client tells: of every column that was asked for, in that order."""

    columns: Annotated[tuple[ColumnStatistics, ...], Field(max_length=MOST_COLUMNS)]


class Feature(ColumnTold):
    """A column that becomes inputs (:class:`~commonground.data.tables.schema.ColumnSchema`)."""

    kind: Literal["number", "category", "boolean", "date"]
    categories: Words = ()
    apart: Words = ()
    missing: bool = False
    fill: Finite = 0.0
    times: bool = False
    offset: Finite = 0.0


class Agreed(_Told):
    """How all clients' tables become inputs; of the targets as in :class:`Columns`, of all clients together.

    Attributes:
        features: the columns that do, in their order.
        dropped: the others, and why.
        mean, std: of every input.
    """

    features: Annotated[tuple[Feature, ...], Field(min_length=1, max_length=MOST_COLUMNS)]
    dropped: dict[Name, Name]
    targets: Targets
    task: Name
    class_names: Classes
    target_decimals: tuple[Decimal, ...]
    target_affixes: tuple[Affix, ...] = ()
    mean: tuple[Finite, ...]
    std: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        inputs = len(self.schema_of_all().inputs)
        if not (len(self.mean) == len(self.std) == inputs):
            raise ValueError(f"{inputs} inputs need as many means and deviations")
        return self

    def schema_of_all(self) -> TableSchema:
        """The schema."""
        return TableSchema(
            features=tuple(ColumnSchema(**feature.model_dump()) for feature in self.features),
            targets=self.targets,
            task=self.task,
            class_names=self.class_names,
            dropped=dict(self.dropped),
            ids=tuple(name for name, why in self.dropped.items() if why == "names a row"),
            mean=self.mean,
            std=self.std,
            target_decimals=self.target_decimals,
            target_affixes=self.target_affixes,
        )


T = TypeVar("T", bound=_Told)


def read_told(kind: type[T], text: str | bytes) -> T:
    """From JSON that somebody else wrote.

    Raises:
        DataError: it is none.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = quoted(".".join(map(str, first["loc"])))
        raise DataError(f"this is no word of a table ({kind.__name__}): {where}: {escaped(first['msg'])}") from None
