"""Files that other programs write: what is meant is read, and what is not read is refused with what to do."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import commonground as cg
from commonground.cli import main
from commonground.data import load_data
from commonground.data.tables.read import read_raw
from commonground.errors import CommonGroundError, DataError

TEXT = "a,b\n1,x\n2,y\n"


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode("utf-32"),
        b"sep=;\r\n" + TEXT.replace(",", ";").encode(),
        b"sep=|\n" + TEXT.replace(",", "|").encode(),
        TEXT.encode() + b"   \n  ",
        TEXT.encode() + b"\n \r\n",
    ],
)
def test_what_is_meant_is_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    raw = read_raw(tmp_path / "t.csv")
    assert {name: column.to_pylist() for name, column in raw.columns.items()} == {"a": ["1", "2"], "b": ["x", "y"]}
    assert raw.numbers() == ([3, 4] if content.startswith(b"sep") else [2, 3])
    assert raw.where(1) == ("line 4" if content.startswith(b"sep") else "line 3")


def test_blanks_at_the_end_are_cells_of_a_table_of_one_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n  \n")
    assert read_raw(tmp_path / "t.csv").rows == 2


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.csv", 'a,b\n1,x\n2,"y\n3,z\n', "line 3, opens a quotation mark that no mark at the end of a cell closes"),
        (
            "t.csv",
            "# made in May\na,b\n1,x\n",
            "line 2, has 2 cells; .* line 1, '# made in May', is taken for the names",
        ),
        ("t.xlsx", "", "is a workbook, which is not read: save its sheet as CSV, or, in Python, load_data"),
        (
            "t.json",
            "[]",
            "t.json is no table: a .json file is of instructions and answers, or in LEAF's form, which are",
        ),
    ],
)
def test_what_is_not_read_is_refused_with_what_to_do(name: str, content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=says):
        read_raw(tmp_path / name)
    with pytest.raises(DataError, match=says):
        load_data(tmp_path / name, 2, target="b")


def test_an_archive_that_is_called_a_table_is_none(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.csv", "w") as archive:
        archive.writestr("a.csv", TEXT)
    with pytest.raises(DataError, match="is a zip archive, or a workbook, which is one; unpack it, or save the sheet"):
        read_raw(tmp_path / "t.csv")


def test_a_folder_of_two_kinds_of_files_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    pd.DataFrame({"a": [1], "b": ["x"]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match="are text; write all as one kind of file, or give each kind a folder"):
        read_raw(tmp_path)


def test_names_in_another_case_are_told(tmp_path: Path) -> None:
    table = pd.DataFrame({"c": ["a", "b"] * 20, "v": np.arange(40) % 7, "y": [0, 1] * 20})
    with pytest.raises(DataError, match=r"has no column 'Y' \(did you mean 'y'\?\)"):
        load_data(table, client_column="c", target="Y")


def test_the_client_of_one_of_the_clients_files_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "per").mkdir()
    for name in ("anna", "ben"):
        table = pd.DataFrame({"v": np.arange(40) % 7, "k": ["x", "y"] * 20, "y": [0, 1, 1, 0] * 10})
        table.to_csv(tmp_path / "per" / f"{name}.csv", index=False)
    data = load_data(tmp_path / "per", client_column="file", target="y")
    cg.train("fedrep", data, rounds=1, out=tmp_path / "run")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "per" / "anna.csv")]) == 2
    assert "of this file alone say --client anna" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(CommonGroundError, match="of this file alone say --client anna"):
        cg.predict_rows(cg.load_run(tmp_path / "run"), tmp_path / "per" / "anna.csv")
