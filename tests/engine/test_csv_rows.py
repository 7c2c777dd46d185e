"""Rows of a CSV file as ``csv.DictReader`` reads them, none of which is kept."""

from __future__ import annotations

import csv
import io
import tracemalloc

import numpy as np
import pytest

from commonground.engine.state.csv_rows import CsvRows

TEXTS = {
    "plain": "client,name,loss\n0,ward,0.5\n1,clinic,\n",
    "no line's end at the end": "client,name,loss\n0,ward,0.5\n1,clinic,-3e-2",
    "lines of other systems": "client,name,loss\r\n0,ward,0.5\r\n1,clinic,nan\r\n",
    "quotes": 'client,name,loss\n0,"a, b",0.5\n1,"said ""so""\nin two lines",x\n2,"","7"\n',
    "empty lines": "client,name,loss\n\n0,ward,0.5\r\n\r\n1,Zürich,inf\n\n",
    "no rows": "client,name,loss\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_rows_are_those_of_the_standard_library(text: str) -> None:
    rows = CsvRows(text.encode())
    wanted = list(csv.DictReader(io.StringIO(text, newline="")))
    assert rows == wanted
    assert [rows[place] for place in range(len(rows))] == wanted  # one by one, by its place in the file
    assert rows[-1:] == wanted[-1:]
    assert rows.names == ["client", "name", "loss"]
    assert rows.numbers("client").tolist() == list(range(len(wanted)))
    with pytest.raises(IndexError):
        rows[len(wanted)]


def test_numbers_of_a_column() -> None:
    rows = CsvRows(b"client,loss\n0,0.5\n1,\n2,ward\n3,-inf\n")
    np.testing.assert_array_equal(rows.numbers("loss"), [0.5, np.nan, np.nan, -np.inf])
    assert np.isnan(rows.numbers("nothing")).tolist() == [True] * 4
    assert len(CsvRows(b"").numbers("loss")) == 0


def test_rows_as_something_else() -> None:
    rows = CsvRows(
        b"client,loss\n0,0.5\n1,2\n", lambda row: {"client": int(row["client"]), "twice": 2 * float(row["loss"])}
    )
    assert rows == [{"client": 0, "twice": 1.0}, {"client": 1, "twice": 4.0}]
    assert repr(rows) == "[{'client': 0, 'twice': 1.0}, {'client': 1, 'twice': 4.0}]"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"client,loss\n0,0.5\n1\n", "row 2 has 1 cells, not 2"),
        (b"client,loss\n0,0.5,1\n", "row 1 has 3 cells, not 2"),
        (b"client,loss\n0,\xff\n", "utf-8"),
    ],
)
def test_what_is_damaged_is_said_at_once(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CsvRows(content)


def test_many_rows_take_little_more_than_their_file() -> None:
    content = b"client,name,loss\n" + b"".join(b"%d,client %d,0.123456\n" % (i, i) for i in range(50_000))
    tracemalloc.start()
    try:
        rows = CsvRows(content)
        assert sum(row["loss"] == "0.123456" for row in rows) == 50_000
        assert rows.numbers("loss").sum() == pytest.approx(50_000 * 0.123456)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2.5 * len(content)  # dicts of these rows take more than ten times as much
