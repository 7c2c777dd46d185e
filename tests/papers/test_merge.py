"""Cells of several folders in one: what comes, what stays, and what is refused before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from commonground.cli import main
from commonground.engine.state.lock import locked_file
from commonground.errors import BusyError
from commonground.papers import experiments
from commonground.papers.experiment import Experiment
from commonground.papers.tables.cells import CELLS, CellStore
from commonground.papers.tables.judge import run_table
from tests.papers.small_table import COLUMN, TABLE


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`whole` as one command fills it, `first` and `second` as two do, each on a machine of its own."""
    Experiment("a-table", "title", "a paper", lambda asked: run_table(TABLE, asked), table=TABLE)
    folder = tmp_path_factory.mktemp("parts")
    asked = {
        "whole": ("fedrep,fedavg", "0", "2"),
        "first": ("fedrep,fedavg", "0", "1"),
        "second": ("fedrep,fedavg", "1", "1"),
    }
    for name, (methods, seed, seeds) in asked.items():
        words = ["reproduce", "a-table", "--scale", "paper", "--methods", methods, "--seed", seed, "--seeds", seeds]
        assert main([*words, "--quiet", "--out", str(folder / name)]) == 0
    yield folder
    del experiments["a-table"]


def merged(out: Path, *others: Path, conflict: str | None = None) -> int:
    words = ["reproduce", *(word for other in others for word in ("--merge", str(other))), "--out", str(out)]
    return main([*words, *(["--on-conflict", conflict] if conflict else [])])


def changed(folder: Path, seed: int, to: Path) -> Path:
    """A copy in which FedRep's cell is another one."""
    copytree(folder, to)
    store, key = CellStore(to), (COLUMN.label, "FedRep", "", seed)
    cell = store.get(key)
    assert cell is not None
    store.add(replace(cell, personal_last10=0.125, weights_sha256="other"), store.clients(key), {})
    return to


def said(folder: Path, *names: str) -> dict[str, object]:
    whole = json.loads((folder / "reproduction.json").read_text("utf-8"))
    return {name: whole[name] for name in names}


def files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_halves_are_the_whole(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert merged(out, parts / "first", parts / "second") == 0
    assert "6 cells added, 0 replaced, 0 left as they were" in capsys.readouterr().out
    store, whole = CellStore(out), CellStore(parts / "whole")
    assert {c.key: replace(c, minutes=0, command="") for c in store.all()} == {
        c.key: replace(c, minutes=0, command="") for c in whole.all()
    }
    for cell in whole.all():
        assert (store.clients(cell.key) == whole.clients(cell.key)).all()
    assert store.curves(COLUMN.label) == whole.curves(COLUMN.label)
    judged = ("claims", "cells", "tables", "notes", "experiment", "title", "scale", "set")
    assert said(out, *judged) == said(parts / "whole", *judged)
    assert (out / "report.html").is_file()
    # Once more is nothing new, whatever it says of minutes and machines.
    assert merged(out, parts / "whole") == 0
    assert "0 cells added, 0 replaced, 6 left as they were" in capsys.readouterr().out


def test_what_was_asked_of_the_folder_stays(parts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    copytree(parts / "second", out)
    before = said(out, "seed", "command", "machine", "commit")
    assert merged(out, parts / "first") == 0
    assert said(out, *before) == before == said(parts / "second", *before)


def test_another_result_is_somebodys_choice(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, other = tmp_path / "out", changed(parts / "whole", 1, tmp_path / "other")
    copytree(parts / "second", out)
    before = files(out)
    assert merged(out, parts / "first", other) == 2
    told = capsys.readouterr().err
    assert f"'{out}' and '{other}' have different results of FedRep, digits (6, 2), seed 1" in told
    assert files(out) == before
    key = (COLUMN.label, "FedRep", "", 1)
    for conflict, wanted in (("keep", CellStore(parts / "whole").get(key)), ("replace", CellStore(other).get(key))):
        copytree(parts / "second", tmp_path / conflict)
        assert merged(tmp_path / conflict, parts / "first", other, conflict=conflict) == 0
        found = CellStore(tmp_path / conflict).get(key)
        assert found is not None
        assert wanted is not None
        assert found.weights_sha256 == wanted.weights_sha256
    told = capsys.readouterr().out
    assert "3 cells added, 0 replaced, 6 left as they were" in told
    assert "3 cells added, 1 replaced, 5 left as they were" in told


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"scale": "small"}, "of scale small and"),
        ({"set": ["rounds=9"]}, "of set rounds=9 and"),
        ({"experiment": "flute-table1"}, "of experiment flute-table1 and"),
    ],
)
def test_cells_of_something_else_do_not_belong_there(
    other: dict[str, object], words: str, parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    copytree(parts / "second", out)
    copytree(parts / "first", tmp_path / "other")
    file = tmp_path / "other" / "reproduction.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | other), "utf-8")
    before = files(out)
    assert merged(out, tmp_path / "other") == 2
    assert words in capsys.readouterr().err
    assert files(out) == before


def test_what_cannot_be_merged_is_said(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, first = tmp_path / "out", parts / "first"
    for words, sentence in (
        (["--merge", str(tmp_path / "none"), "--out", str(out)], "reproduction.json"),
        (["--merge", str(first), "--out", str(first)], "cannot be added to itself"),
        (["--merge", str(first)], "--out is missing"),
        (["--merge", str(first), "--out", str(out), "--seeds", "3"], "leave out --seeds or it"),
        (["--merge", str(first), "--status", str(first), "--out", str(out)], "are two commands; give one of them"),
        (["a-table", "--on-conflict", "keep", "--out", str(out)], "--on-conflict is for --merge"),
        (["a-table", "--runs", "3", "--out", str(out)], "--runs is for --rerun"),
    ):
        assert main(["reproduce", *words]) == 2
        assert sentence in capsys.readouterr().err
        assert not out.exists()
    out.mkdir()
    (out / CELLS).write_bytes((first / CELLS).read_bytes())
    assert merged(out, first) == 2
    assert "holds cells and no reproduction.json" in capsys.readouterr().err


def test_earlier_versions_wrote_no_settings_where_there_were_none(parts: Path, tmp_path: Path) -> None:
    copytree(parts / "first", tmp_path / "old")
    file = tmp_path / "old" / "reproduction.json"
    about = json.loads(file.read_text("utf-8"))
    del about["set"]
    file.write_text(json.dumps(about), "utf-8")
    assert merged(tmp_path / "out", parts / "second", tmp_path / "old") == 0
    assert len(CellStore(tmp_path / "out")) == 6
    assert said(tmp_path / "out", "command") == {
        "command": "commonground reproduce --merge second --merge old --out out"
    }


def test_a_folder_that_lost_its_cells_is_no_empty_one(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(parts / "first", tmp_path / "lost")
    (tmp_path / "lost" / CELLS).unlink()
    assert merged(tmp_path / "out", tmp_path / "lost") == 2
    assert "holds no cells (it has no cells.csv)" in capsys.readouterr().err


def test_nobody_adds_a_cell_between_looking_and_writing(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process waits until all is there; what it has measured is then a conflict of its own."""
    out, held = tmp_path / "out", []
    copytree(parts / "second", out)
    whole = CellStore.add_alone

    def added(store: CellStore, *given: Any) -> None:
        with pytest.raises(BusyError), locked_file(store.folder / ".cells.lock", wait=False):
            pass
        held.append(given[0].key)
        whole(store, *given)

    monkeypatch.setattr(CellStore, "add_alone", added)
    assert merged(out, parts / "first") == 0
    assert len(held) == 3
