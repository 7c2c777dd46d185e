"""In which order a file writes day, month and year, and what it leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.data.tables.dates import date_numbers
from commonground.data.tables.inspect import inspect_table
from commonground.data.tables.schema import TableSchema
from commonground.errors import DataError

OPEN, MONTHS, DAYS = ["03/04/2024", "05/06/2024"], ["03/25/2024", "12/31/2024"], ["25/03/2024", "31/12/2024"]


def schema_of(path: Path, said: str = "", **columns: Sequence[str]) -> TableSchema:
    index = np.arange(40)
    frame = pd.DataFrame({"who": [f"c{i % 2}" for i in index], "won": index // 2 % 2, "other": index % 7})
    for name, cells in columns.items():
        frame[name] = [cells[i // 2 % len(cells)] for i in range(40)]
    frame.to_csv(path, index=False)
    schema = cg.load_data(path, client_column="who", target="won", kinds=said or None).schema
    assert schema is not None
    return schema


def orders(schema: TableSchema) -> dict[str, str]:
    return {one.name: one.order for one in schema.features if one.kind == "date"}


def test_dates_that_are_open_are_read_as_the_file_s_others_prove(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    assert orders(schema_of(path, v=OPEN)) == {"v": "%d/%m/%Y"}
    schema = schema_of(path, v=OPEN, w=MONTHS)
    assert orders(schema) == {"v": "%m/%d/%Y", "w": "%m/%d/%Y"}
    says = "month before day, as in 'w'; else say --kinds v=date:%d/%m/%Y"
    assert f"v: {says}" in schema.notes
    assert {one.name: one.suspicious for one in inspect_table(path, target="won").columns}["v"] == says
    assert orders(schema_of(path, "v=date", v=OPEN, w=MONTHS))["v"] == "%m/%d/%Y"
    assert orders(schema_of(path, "v=date:%d/%m/%Y", v=OPEN, w=MONTHS))["v"] == "%d/%m/%Y"
    assert orders(schema_of(path, v=OPEN, w=DAYS))["v"] == "%d/%m/%Y"
    # Another mark proves nothing.
    assert orders(schema_of(path, v=OPEN, w=["03-25-2024", "12-31-2024"])) == {"v": "%d/%m/%Y", "w": "%m-%d-%Y"}


def test_dates_that_prove_both_orders_leave_the_day_first(tmp_path: Path) -> None:
    schema = schema_of(tmp_path / "t.csv", v=OPEN, w=MONTHS, x=DAYS)
    assert orders(schema) == {"v": "%d/%m/%Y", "w": "%m/%d/%Y", "x": "%d/%m/%Y"}
    says = "v: day before month, as in 'x', and not as in 'w'; else say --kinds v=date:%m/%d/%Y"
    assert says in schema.notes


def test_the_column_of_times_is_read_as_the_file_s_other_dates(tmp_path: Path) -> None:
    index = np.arange(40)
    frame = pd.DataFrame(
        {"who": [f"c{i % 2}" for i in index], "won": index // 2 % 2, "w": [MONTHS[i % 2] for i in index]}
    )
    frame["at"] = [f"0{1 + i % 9}/0{1 + i % 7}/2024" for i in index]
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = cg.load_data(tmp_path / "t.csv", client_column="who", target="won", time_column="at")
    assert data.schema is not None
    assert data.schema.asked["kinds"] == {"at": "date:%m/%d/%Y"}


def test_times_that_are_all_one_day_are_times(tmp_path: Path) -> None:
    index = np.arange(40)
    frame = pd.DataFrame(
        {"who": [f"c{i % 2}" for i in index], "won": index // 2 % 2, "x": index % 7, "at": "2024-01-01"}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    cells = cg.load_data(tmp_path / "t.csv", client_column="who", target="won", time_column="at")
    stored = cg.load_data(
        frame.assign(at=pd.to_datetime(frame["at"])), client_column="who", target="won", time_column="at"
    )
    np.testing.assert_array_equal(cells.x_test, stored.x_test)
    frame.assign(at="soon").to_csv(tmp_path / "u.csv", index=False)
    with pytest.raises(DataError, match="'at' holds neither dates nor numbers"):
        cg.load_data(tmp_path / "u.csv", client_column="who", target="won", time_column="at")


@pytest.mark.parametrize(
    ("cells", "order", "first"),
    [
        (["30.04.24", "01.05.24"], "%d.%m.%y", "2024-04-30"),
        (["3/25/24", "12/1/24"], "%m/%d/%y", "2024-03-25"),
        (["25/3/24", "1/12/24"], "%d/%m/%y", "2024-03-25"),
        (["01-31-2024 10:00", "02-01-2024 11:00"], "%m-%d-%Y %H:%M", "2024-01-31T10:00"),
        (["31-01-2024 10:00", "01-02-2024 11:00"], "%d-%m-%Y %H:%M", "2024-01-31T10:00"),
        (["3/25/2024 1:30 PM", "3/5/2024 2:30 AM"], "%m/%d/%Y %I:%M %p", "2024-03-25T13:30"),
        (["5 Mar 2024", "17 Apr 2024"], "%d %b %Y", "2024-03-05"),
        (["5-Mar-2024", "17-Apr-2024"], "%d-%b-%Y", "2024-03-05"),
        (["March 5, 2024", "April 17, 2024"], "%B %d, %Y", "2024-03-05"),
        (["30.04.2024 10:00", "01.05.2024"], "%d.%m.%Y %H:%M", "2024-04-30T10:00"),
    ],
)
def test_dates_as_exports_write_them(cells: list[str], order: str, first: str, tmp_path: Path) -> None:
    assert orders(schema_of(tmp_path / "t.csv", v=cells)) == {"v": order}
    day = (np.datetime64(first, "m") - np.datetime64(0, "m")) / np.timedelta64(1, "D")
    assert date_numbers(cells[:1], order) == pytest.approx([day])


def test_versions_and_odd_words_are_no_dates(tmp_path: Path) -> None:
    assert orders(schema_of(tmp_path / "t.csv", v=["1.2.24", "1.3.24", "2.0.1"])) == {}
    says = r"'soon' is no date as in 2024-01-31; .* --kinds v=date:FORMAT, as date:%d\.%m\.%Y"
    with pytest.raises(DataError, match=says):
        schema_of(tmp_path / "t.csv", "v=date", v=["soon", "later"])
