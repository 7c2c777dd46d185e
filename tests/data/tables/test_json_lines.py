"""Tables of JSON lines: what is wrong is told by line and column, and no number is another."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import commonground as cg
from commonground.data import load_data
from commonground.data.sources.text_table import load_text_table
from commonground.data.tables.read import read_raw
from commonground.errors import DataError


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"a": 1}\n{"a": "x"}\n', "line 2 holds a text in 'a', and line 1 a number; the cells of a column are of one"),
        ('{"a": null}\n{"a": 1}\n\n{"a": true}\n', "line 4 holds a truth in 'a', and line 2 a number"),
        ('{"a": {"v": 1}}\n{"a": {"v": "x"}}\n', "line 2 holds a text in 'a.v', and line 1 a number"),
        ('{"a": 1}\n{"a": 1, "a": 2}\n', "line 2 has the field 'a' twice; every column needs its own name"),
        ('[{"a": 1}, {"a": 2}]\n', "it is a JSON array, and one object a line is needed, without brackets or commas"),
        ('[\n {"a": 1},\n {"a": 2}\n]\n', "it is a JSON array, and one object a line is needed"),
        ('{"a": [\n1]\n', "line 1 is no JSON"),
        ('{"a": 18446744073709551616}\n', "line 1, column 'a': 18446744073709551616 is a whole number of more than 64"),
        (
            '{"a": -1}\n{"a": 9223372036854775808}\n',
            "line 2, column 'a': 9223372036854775808 is too large for a column of whole numbers that also holds",
        ),
        (
            '{"a": -1}\n{"a": 18446744073709551616}\n',
            "line 2, column 'a': 18446744073709551616 is a whole number of more than 64 bits",
        ),
    ],
)
def test_what_is_no_table(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(content, "utf-8")
    with pytest.raises(DataError, match=says):
        load_data(tmp_path / "t.jsonl", client_column="who", label="left")


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([-7, 2**63 + 2], r"9223372036854775810 is too large for .* also holds negative ones \(-7\); take texts for"),
        ([-7, 2**64], "18446744073709551616 is a whole number of more than 64 bits"),
    ],
)
def test_a_frame_with_numbers_of_no_common_type(cells: list[int], says: str) -> None:
    frame = pd.DataFrame({"who": ["a", "b"], "v": cells, "left": ["x", "y"]})
    with pytest.raises(DataError, match=says):
        load_data(frame, client_column="who", label="left")


def test_whole_numbers_of_64_bits_are_told_apart(tmp_path: Path) -> None:
    """Arrow infers doubles from 2^63 on, of which four clients would be one."""
    rows = [{"c": 2**63 + 1 + i % 4, "x": i / 10, "y": i % 3 % 2} for i in range(40)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    names = tuple(str(2**63 + 1 + i) for i in range(4))
    assert load_data(path, client_column="c", target="y").client_names == names
    path.write_text("\n".join(json.dumps(row) for row in [*rows, {"c": None, "x": 1e300, "y": 0}]))
    raw = read_raw(path)
    assert (str(raw.columns["c"].type), str(raw.columns["x"].type)) == ("uint64", "double")


def test_a_column_of_lists_is_said_to_hold_lists(tmp_path: Path) -> None:
    """To whoever needs it, and not that there is none."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": ["a"], "label": 1}\n' * 4)
    with pytest.raises(DataError, match=r"the column 'text' holds list<item: string>; write one text a row"):
        load_text_table(path)
    table = pd.DataFrame({"c": ["a", "b"] * 20, "n": range(40), "city": ["x", "y", "z", "x"] * 10}).assign(
        y=[0, 1, 1, 0] * 10
    )
    run = cg.train("fedavg", load_data(table, client_column="c", target="y"), rounds=1)
    path.write_text('{"c": "a", "n": 3, "city": ["x"]}\n')
    with pytest.raises(DataError, match="the column 'city' holds list<item: string>, and no numbers, words, dates or"):
        cg.predict_rows(run, path)
