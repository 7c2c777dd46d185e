"""What an experiment finds: judged claims, a paper's table beside ours, figures and other tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from commonground.papers.figures import Figure
from commonground.statistics import Values, student_interval
from commonground.table import Table

__all__ = ["Cell", "Claim", "Outcome", "interval_columns"]


@dataclass(frozen=True)
class Claim:
    """A statement of a paper with what was measured for it.

    Attributes:
        claim: the statement, in words.
        source: where the paper makes it.
        paper: the paper's value for it (a difference in percentage points, where it compares accuracies), its word
            for it, or None.
        measured: ours; the claim's text says what it counts where it is no difference in percentage points.
        low, high: 95 % interval of ``measured``.
        seeds: number of seeds behind it.
        holds: True if the interval lies on the claimed side, False if on the other, None if it holds neither way.
        remark: what else differs between what is compared, if anything.
    """

    claim: str
    source: str
    paper: float | str | None
    measured: float
    low: float
    high: float
    seeds: int
    holds: bool | None
    remark: str = ""


@dataclass(frozen=True)
class Cell:
    """One number of a table: the paper's beside ours, in percent; no interval where one seed was measured."""

    column: str
    method: str
    paper: float | None
    measured: float
    low: float | None
    high: float | None
    seeds: int

    @classmethod
    def over_seeds(cls, column: str, method: str, paper: float | None, values: Sequence[float] | Values) -> Cell:
        """The mean of one value per seed, in percent, with its interval; a single one says nothing of other seeds."""
        mean, low, high = (float(v) for v in student_interval(values))
        if len(values) < 2:
            return cls(column, method, paper, mean, None, None, 1)
        return cls(column, method, paper, mean, low, high, len(values))


def interval_columns(values: Sequence[float] | Values) -> dict[str, float | str]:
    """The entries ``measured``, ``low`` and ``high`` of a table's row, in percent; no interval of a single seed."""
    mean, low, high = (round(float(v), 2) for v in student_interval(values))
    alone = len(values) < 2
    return {"measured": mean, "low": "" if alone else low, "high": "" if alone else high}


@dataclass
class Outcome:
    """What an experiment found.

    Attributes:
        claims: judged statements.
        cells: a paper's table of accuracies, ours beside its own.
        figures: by title.
        tables: other tables.
        notes: what was reduced, left out or differs, in sentences.
        settings: what it was run with, where the experiment has settings of its own.
    """

    claims: list[Claim] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def leave_out_undefined(self) -> None:
        """Make notes of claims about what has no value here, such as a ratio of zeros: nothing can be judged by it."""
        defined = [all(map(math.isfinite, (one.measured, one.low, one.high))) for one in self.claims]
        self.notes += [
            f"Not judged, since it has no value with these settings: {one.claim}."
            for one, has_value in zip(self.claims, defined, strict=True)
            if not has_value
        ]
        self.claims = [one for one, has_value in zip(self.claims, defined, strict=True) if has_value]

    def add_table(self, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a table, a mapping per row, all with the same keys."""
        self.tables.append(Table.of(title, rows))

    def table(self, title: str) -> Table:
        """One of the other tables.

        Raises:
            KeyError: there is none of this title.
        """
        for table in self.tables:
            if table.title == title:
                return table
        raise KeyError(title)

    def cell_table(self) -> Table:
        """The cells, a row each."""
        return Table.of("table", [asdict(cell) for cell in self.cells])

    def claim_table(self) -> Table:
        """The claims, a row each."""
        spare = set() if any(claim.remark for claim in self.claims) else {"remark"}
        rows = [{name: v for name, v in asdict(claim).items() if name not in spare} for claim in self.claims]
        return Table.of("claims", rows)
