"""Tables of very many columns: the work grows with their number, not with its square."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground.data.tables.cells import plain_numbers
from commonground.data.tables.encode import transformer
from commonground.data.tables.load import load_table
from commonground.data.tables.options import TableOptions
from commonground.data.tables.read import RawTable, read_raw
from commonground.data.tables.schema import TableSchema
from commonground.errors import DataError

ROWS = 40
CELLS = {"number": "{}.5", "gap": "", "plan": "p{}", "day": "2024-01-{:02}", "active": "yes"}


def write(path: Path, columns: int) -> Path:
    """Numbers, numbers with gaps, categories, dates and truths in turns."""
    kinds = list(CELLS)
    names = [f"{kinds[i % 5]}{i}" for i in range(columns)]
    lines = ["who,label," + ",".join(names)]
    for row in range(ROWS):
        other = row % 3 == 1
        cells = {kind: text.format(row % 9 + 1) for kind, text in CELLS.items()}
        cells |= {"gap": "" if other else str(row), "active": "no" if other else "yes", "plan": f"p{row % 3}"}
        lines.append(f"w{row % 2},{'ab'[row // 2 % 2]}," + ",".join(cells[kinds[i % 5]] for i in range(columns)))
    file = path / f"wide{columns}.csv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def calls(file: Path, schema: TableSchema | None = None) -> tuple[int, int]:
    """Calls of functions while a table is read and encoded, and those among them that look through a list."""
    profile = cProfile.Profile()
    profile.runcall(load_table, file, options=TableOptions(client_column="who"), schema=schema)
    stats: Any = pstats.Stats(profile)
    looks = ("method 'index' of 'list'", "method 'count' of 'list'", "method 'index' of 'tuple'")
    found = sum(entry[1] for (_, _, name), entry in stats.stats.items() if any(look in name for look in looks))
    return int(stats.total_calls), found


@pytest.mark.parametrize("known", [False, True])
def test_calls_grow_with_the_columns(known: bool, tmp_path: Path) -> None:
    counts, looks = [], []
    for columns in (50, 100, 200, 300):  # the first imports
        file = write(tmp_path, columns)
        options = TableOptions(client_column="who")
        schema = load_table(file, options=options).origin.schema if known else None
        one, other = calls(file, schema)
        counts.append(one)
        looks.append(other)
    assert counts[3] - counts[2] == pytest.approx(counts[2] - counts[1], rel=0.02)
    assert max(looks[1:]) < 50


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_names_are_found_and_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search through a list is one call, however long: so the comparisons are counted as well."""
    compared = []

    def counted(*args: Any, **kwargs: Any) -> RawTable:
        raw = read_raw(*args, **kwargs)
        columns: dict[str, Any] = {Counted(name): column for name, column in raw.columns.items()}
        Counted.compared = 0
        return RawTable(raw.path, columns, raw.typed, raw.where, raw.numbers, raw.unit, raw.notes)

    monkeypatch.setattr("commonground.data.tables.load.read_raw", counted)
    for columns in (100, 200, 300):
        file = write(tmp_path, columns)
        schema = load_table(file, options=TableOptions(client_column="who")).origin.schema
        load_table(file, options=TableOptions(client_column="who"), schema=schema)
        compared.append(Counted.compared)
    assert compared[2] - compared[1] <= 1.1 * (compared[1] - compared[0]) + 50


def test_transformers_are_told_places(tmp_path: Path) -> None:
    schema = load_table(write(tmp_path, 25), options=TableOptions(client_column="who")).origin.schema
    assert schema is not None
    places = [place for _, _, keys in transformer(schema).transformers for place in keys]
    assert sorted(places) == list(range(25 + 4 * 5))  # a date has four parts
    assert all(type(place) is int for place in places)


def test_doubled_names_of_a_wide_table_are_named(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(",".join(["label", *map(str, range(5000)), "7"]) + "\n" + "1," * 5001 + "1\n", "utf-8")
    with pytest.raises(DataError, match="every column needs its own name; '7' does not have one"):
        read_raw(file)


def test_blanks_and_gaps_among_numbers_are_read_as_before(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    cells = ["1", " 2 ", "NA", "nan", "?", "", "-inf", "3e2"]
    file.write_text("x,label\n" + "".join(f"{cell},{'ab'[i % 2]}\n" for i, cell in enumerate(cells)), "utf-8")
    expected = [1, 2, np.nan, np.nan, np.nan, np.nan, -np.inf, 300]
    np.testing.assert_array_equal(plain_numbers(read_raw(file).columns["x"]), expected)
