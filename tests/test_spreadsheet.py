"""Names of clients as cells: no spreadsheet computes them, and the true name comes back."""

from __future__ import annotations

import csv
import doctest
import json
from pathlib import Path

import pytest

import commonground as cg
from commonground import spreadsheet
from commonground.data import limit_samples
from commonground.report import write_run_report
from commonground.spreadsheet import cell, without_apostrophe
from tests.helpers import made_data

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "=HYPERLINK(1)", "'=1", "''@x"]
OTHERS = ["ward", "'s-Hertogenbosch", "a=b", "", "日本", "it's"]
ACTING = ["\tx", "\r=1", "\u202eevil", "\x1b[2Jx", "a\nb", "zero\u200bwidth"]


@pytest.mark.parametrize("text", FORMULAS + OTHERS)
def test_there_and_back(text: str) -> None:
    assert without_apostrophe(cell(text)) == text
    assert (cell(text) != text) == (text in FORMULAS)


@pytest.mark.parametrize("text", ACTING)
def test_what_acts_is_escaped(text: str) -> None:
    assert cell(text).isprintable()
    assert cell(text)[0] not in "=+-@"


def test_numbers_may_stay() -> None:
    assert [cell(text, numbers=True) for text in ("-1", "-1.5e3", "-a", "=1")] == ["-1", "-1.5e3", "'-a", "'=1"]


def test_documentation() -> None:
    assert doctest.testmod(spreadsheet).failed == 0


def test_a_run_with_hostile_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [*FORMULAS[:4], *ACTING]
    data = made_data([6] * len(names), client_names=names)
    run = cg.train("fedrep", data, rounds=1, model="linear", engine="serial", out=tmp_path)
    assert [client["name"] for client in run.clients] == names
    assert [client["name"] for client in cg.load_run(tmp_path).clients] == names
    assert json.loads((tmp_path / "split.json").read_text())["client_names"] == names
    with (tmp_path / "clients.csv").open(newline="") as file:
        cells = [row["name"] for row in csv.DictReader(file)]
    assert cells == [cell(name, numbers=True) for name in names]
    page = write_run_report(tmp_path)
    for path in (page, tmp_path / "clients.csv", *(tmp_path / "figures").glob("*.csv")):
        text = path.read_text("utf-8")
        assert not {"\u202e", "\x1b", "\u200b", "\r"} & set(text), path.name
    assert "\\u202eevil" in page.read_text("utf-8")
    assert "'=1+1" not in page.read_text("utf-8")  # the apostrophe is for spreadsheets alone


def test_errors_show_names_escaped() -> None:
    data = made_data([6, 2], client_names=["ward", "\x1b[2J\u202e"])
    with pytest.raises(cg.CommonGroundError, match=r"client \\x1b\[2J\\u202e has") as caught:
        limit_samples(data, "train", 5, 0)
    assert str(caught.value).isprintable()


def test_what_is_to_be_whole_is_neither_cut_nor_escaped() -> None:
    text = "one\ntwo " * 500
    assert cell(text, whole=True) == text
    assert cell("=" + text, whole=True) == "'=" + text
    assert len(cell(text)) < 1100
