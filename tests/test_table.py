"""A table prints, writes CSV and is drawn from the same rows."""

from __future__ import annotations

import csv
import io

from rich.console import Console

from commonground.report.page import draw_table
from commonground.table import Column, Table

ROWS = [{"method": "FedRep", "rounds": 12, "best": True}, {"method": "Fed, Avg", "rounds": 0.123456789, "note": "x"}]


def printed(table: Table, *, framed: bool = True) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(table.to_rich(framed=framed))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_columns_are_all_keys_in_the_order_they_appear() -> None:
    table = Table.of("t", ROWS)
    assert table.names == ["method", "rounds", "best", "note"]
    assert table.rows is ROWS


def test_csv_holds_every_value_and_leaves_missing_ones_empty() -> None:
    read = list(csv.reader(io.StringIO(Table.of("t", ROWS).to_csv())))
    assert read == [
        ["method", "rounds", "best", "note"],
        ["FedRep", "12", "True", ""],
        ["Fed, Avg", "0.123456789", "", "x"],
    ]


def test_print() -> None:
    table = Table("t", (Column("method"), Column("rounds", numeric=True)), ROWS, bold=frozenset({0}))
    for framed in (True, False):
        text = printed(table, framed=framed)
        assert "FedRep" in text
        assert "0.123456789" in text
        assert ("│" in text) is framed
    assert table.to_rich().columns[1].justify == "right"
    assert [row.style for row in table.to_rich().rows] == ["bold", ""]


def test_draw() -> None:
    page = draw_table(Table.of("a <table>", ROWS), ["x.csv"])
    assert 'data-value="12" data-key="[0].rounds"' in page
    assert "✓" in page
    assert "a &lt;table&gt;" in page
    assert page.count("class=n") == 1  # the column with numbers


def test_a_table_that_is_too_wide_comes_in_parts_that_name_their_rows() -> None:
    numbers = [f"metric {n}" for n in range(9)]
    rows = [{"method": name, **dict.fromkeys(numbers, f"{name[0]} 0.123 ± 0.004")} for name in ("FedRep", "Local Only")]
    table = Table("figures", (Column("method"), *(Column(name, numeric=True) for name in numbers)), rows)
    for width in (60, 110, 400):
        console = Console(file=io.StringIO(), width=width)
        parts = table.to_fit(console)
        for part in parts:
            console.print(part)
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        assert text.count("Local Only") == text.count("FedRep") == len(parts)
        assert text.count("0.123 ± 0.004") == 18
        assert [name for name in numbers if name not in text] == []
        assert text.count("figures") == len(parts)
        assert text.count("continued") == len(parts) - 1
        assert (len(parts) == 1) == (width == 400)
