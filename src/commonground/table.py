"""A table, once: it prints on a console, writes itself as CSV, and a report draws it (``report.page.draw_table``)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

from commonground.spreadsheet import cell

__all__ = ["Column", "Table"]


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: its heading, and its key in the rows.
        numeric: whether it is set flush right and never wrapped.
    """

    name: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Rows with the same columns.

    Attributes:
        title: what it shows; unique among the tables beside it.
        columns: in their order.
        rows: values by column name; a missing one is left empty. Values stay as they are in JSON and CSV.
        bold: which rows are printed bold.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]
    bold: frozenset[int] = frozenset()

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
        """A table of all keys of its rows, in the order in which they first appear."""
        return cls(title, tuple(Column(key) for key in dict.fromkeys(key for row in rows for key in row)), rows)

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column.name for column in self.columns]

    def to_csv(self) -> str:
        """A line of names and a line per row, for example ``method,rounds`` and ``FedRep,12``."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: cell(v, numbers=True) if isinstance(v, str) else v for name, v in row.items()} for row in self.rows
        )
        return text.getvalue()

    def to_rich(self, *, framed: bool = True) -> RichTable:
        """To print with rich.

        Args:
            framed: with lines around every column; without, only the headings are underlined, which is narrower.
        """
        from rich import box
        from rich.table import Table as RichTable

        if framed:
            table = RichTable(title=self.title)
        else:
            table = RichTable(
                title=self.title,
                title_justify="left",
                title_style="",
                box=box.SIMPLE_HEAD,
                pad_edge=False,
                padding=(0, 1, 0, 0),
            )
        for column in self.columns:
            table.add_column(column.name, justify="right" if column.numeric else "left", no_wrap=column.numeric)
        for index, row in enumerate(self.rows):
            cells = (str(row.get(name, "")) for name in self.names)
            table.add_row(*cells, style="bold" if index in self.bold else "")
        return table

    def to_fit(self, console: Console) -> list[RichTable]:
        """To print on a console, without frames: where it is too wide, its columns of numbers are shared out over
        several tables, each with the columns of words before them, so that no cell is cut and every row can be told.
        """
        words = [column for column in self.columns if not column.numeric]
        parts: list[list[Column]] = [[]]
        for column in self.columns:
            if column.numeric:
                if parts[-1] and self._part(words, [*parts[-1], column])._width(console) > console.width:
                    parts.append([])
                parts[-1].append(column)
        if len(parts) == 1:
            return [self.to_rich(framed=False)]
        return [
            replace(self._part(words, own), title=self.title + (", continued" if number else "")).to_rich(framed=False)
            for number, own in enumerate(parts)
        ]

    def _part(self, words: Sequence[Column], numbers: Sequence[Column]) -> Table:
        return replace(self, columns=(*words, *numbers))

    def _width(self, console: Console) -> int:
        from rich.measure import Measurement

        return Measurement.get(console, console.options.update(width=10_000), self.to_rich(framed=False)).maximum
