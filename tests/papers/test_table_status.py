"""What of a table is there and what comes next, and the command that fills it."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from commonground.cli import main
from commonground.errors import RunError
from commonground.models.networks import MLP, ConvNet
from commonground.papers import experiments
from commonground.papers.experiment import Experiment
from commonground.papers.outcome import Outcome
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.judge import run_table
from commonground.papers.tables.queue import ORDER, next_stage, stages
from commonground.papers.tables.status import hours_left, missing_work, status_table, tables_in
from commonground.papers.tables.table import Row
from commonground.papers.tables.variants import VARIANTS
from tests.papers.small_table import COLUMN, TABLE, request

# -- what is there, and what comes next -------------------------------------------------------------------------------


def test_the_tables_of_a_folder_of_folders_are_found(tmp_path: Path) -> None:
    for name, files in {
        "b": ["cells.csv", "reproduction.json"],
        "a": ["reproduction.json"],
        "c": ["cells.csv"],
    }.items():
        (tmp_path / "many" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "many" / name / file).touch()
    assert tables_in(tmp_path / "many") == tables_in(tmp_path / "many" / "b") == [tmp_path / "many" / "b"]
    with pytest.raises(RunError, match="holds no table of cells"):
        tables_in(tmp_path / "many" / "c")
    with pytest.raises(RunError, match="is not a folder"):
        tables_in(tmp_path / "nothing")


def test_status_cuts_no_name_and_keeps_to_its_lines(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table with many columns comes in parts."""
    columns = [replace(TABLE.columns[0], label=f"CIFAR-100 (100, {classes})") for classes in range(2, 12)]
    rows = [replace(row, name=f"{row.name}, all layers of it") for row in TABLE.rows]
    wide = replace(TABLE, columns=[*TABLE.columns, *columns], rows=rows)
    shown = status_table(wide, CellStore(filled)), ["lines"]
    monkeypatch.setattr("commonground.papers.tables.status.status_lines", lambda _: shown)
    (tmp_path / "reproduction.json").touch()
    assert main(["reproduce", "--status", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 110
    assert all(name in said for name in (*(column.label for column in wide.columns), "lines"))
    assert said.count(rows[0].name) == said.count("by seed") > 1
    assert "…" not in said


def test_status_counts_and_estimates(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = CellStore(filled)
    table = replace(TABLE, seeds=2)
    assert status_table(table, store).title == "a-table: 6 of 8 cells, by seed (of 0–1)"
    assert [row["digits (6, 2)"] for row in status_table(table, store).rows] == ["0–1", "0–1", "0–1", "–"]
    assert [work.arm.row.name for work in missing_work(table, store, 2)] == ["APFL", "APFL"]
    minutes = [cell.minutes for cell in store.all()]
    hours = hours_left(table, store, 2)
    assert hours is not None
    assert min(minutes) / 30 <= hours <= max(minutes) / 30
    assert hours_left(table, store, 2, "cuda") is hours_left(table, store, 2, "cpu", "bf16") is None
    assert hours_left(replace(table, rows=[Row("New", "fedavg")]), store, 2) is None  # of no row that was measured


def test_the_time_left_is_that_of_the_fastest_runs_alike(filled: Path, tmp_path: Path) -> None:
    """Three seeds of FedRep, of which one was slowed down; APFL was not measured and takes what its column takes."""
    first = {cell.method: cell for cell in CellStore(filled).all() if cell.seed == 0}
    store = CellStore(tmp_path)
    for seed, minutes in enumerate((6.0, 30.0, 4.0)):
        store.add(replace(first["FedRep"], seed=seed, minutes=minutes, weights_sha256=f"r{seed}"), [0.5], {})
    for name in ("FedAvg", "FedAvg+FT"):  # of one run
        store.add(replace(first[name], minutes=8.0, weights_sha256="a"), [0.5], {})
    hours = hours_left(TABLE, store, 3)
    assert hours == pytest.approx((2 * 8 + 3 * median([4, 8])) / 60)  # FedAvg's seeds 1 and 2, APFL's three
    longer = [replace(r, settings={"local_epochs": 5}) if r.name == "APFL" else r for r in TABLE.rows]
    hours = hours_left(replace(TABLE, rows=longer), store, 3)
    assert hours == pytest.approx((2 * 8 + 3 * 5 * median([4, 8])) / 60)  # by its epochs


def test_cells_of_another_precision_are_told_and_not_measured_again(filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    before = (tmp_path / "cells.csv").read_text()
    outcome = run_table(TABLE, request(tmp_path, precision="bf16", methods=("fedrep",)))
    (note,) = (note for note in outcome.notes if "not in bf16" in note)
    assert note.startswith("Computed in fp32, not in bf16, as measured before and not again: FedRep (seed 0);")
    assert (tmp_path / "cells.csv").read_text() == before
    assert not any("not in fp32" in note for note in run_table(TABLE, request(tmp_path)).notes)


def without(folder: Path, method: str, seed: int) -> None:
    """Remove a cell's line."""
    lines = list(csv.DictReader((folder / "cells.csv").read_text().splitlines()))
    with (folder / "cells.csv").open("w") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(one for one in lines if (one["method"], one["seed"]) != (method, str(seed)))


def test_a_cell_stays_when_its_run_is_trained_once_more_for_another(filled: Path, tmp_path: Path) -> None:
    """FedAvg and FedAvg+FT are read from one run."""
    keys = [(COLUMN.label, name, "", 0) for name in ("FedAvg", "FedAvg+FT")]

    def completed(folder: Path, **more: Any) -> tuple[CellStore, list[str]]:
        without(folder, "FedAvg+FT", 0)
        notes = run_table(TABLE, request(folder, methods=("fedavg",), seeds=1, **more)).notes
        return CellStore(folder), [note for note in notes if "other weights" in note or "not in bf16" in note]

    shutil.copytree(filled, tmp_path / "bf16")
    before = CellStore(filled)
    store, notes = completed(tmp_path / "bf16", precision="bf16")
    assert store.get(keys[0]) == before.get(keys[0])
    assert store.clients(keys[0]).tolist() == before.clients(keys[0]).tolist()
    tuned = store.get(keys[1])
    assert tuned is not None
    assert tuned.precision == "bf16"
    (note,) = notes
    assert note.startswith("Computed in fp32, not in bf16, as measured before and not again: FedAvg (seed 0);")

    shutil.copytree(filled, tmp_path / "fp32")
    store, notes = completed(tmp_path / "fp32")
    assert store.get(keys[0]) == before.get(keys[0])
    one, other = store.get(keys[1]), before.get(keys[1])
    assert one is not None
    assert other is not None
    assert one.weights_sha256 == other.weights_sha256
    assert notes == []

    first = store.get(keys[0])
    assert first is not None
    store.add(replace(first, weights_sha256="ab" * 32), store.clients(keys[0]), {})
    store, notes = completed(tmp_path / "fp32")
    kept = store.get(keys[0])
    assert kept is not None
    assert kept.weights_sha256 == "ab" * 32
    assert notes == [
        "FedAvg, digits (6, 2), seed 0, stays as it was; its run, trained once more for other cells, ended with other "
        "weights, so that these cells are of two runs."
    ]


def test_the_status_counts_seeds_beyond_the_papers_apart(filled: Path, tmp_path: Path) -> None:
    (cell, *_) = (cell for cell in CellStore(filled).all() if cell.method == "FedRep" and cell.seed == 0)
    store = CellStore(tmp_path)
    store.add(replace(cell, seed=41), [0.5], {})
    table = status_table(replace(TABLE, seeds=2), store)
    assert table.title == "a-table: 0 of 8 cells, by seed (of 0–1)"
    assert table.rows[0]["digits (6, 2)"] == "–; also 41"


def test_the_queue_takes_what_is_missing_in_its_order(tmp_path: Path) -> None:
    known = {name: one.table for name, one in experiments.items() if one.table is not None}
    for table, stage in stages(known):
        assert set(stage.columns) <= {column.label for column in table.columns}
        assert next_stage(table, stage, tmp_path)
    assert [(s.table, s.seeds) for s in ORDER[:4]] == [
        ("fedrep-table1", 1), ("flute-table1", 1), ("fedrep-table1", 3), ("flute-table1", 3)
    ]  # fmt: skip


def test_cells_from_before_the_processor_was_written_down(filled: Path, tmp_path: Path) -> None:
    lines = list(csv.DictReader((filled / "cells.csv").read_text().splitlines()))
    names = [name for name in lines[0] if name not in ("processor", "engine")]
    with (tmp_path / "cells.csv").open("w") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    for cell in CellStore(tmp_path).all():
        now = CellStore(filled).get(cell.key)
        assert now is not None
        assert cell == replace(now, processor="", engine="")


def test_a_damaged_file_is_named(filled: Path, tmp_path: Path) -> None:
    text = (filled / "cells.csv").read_text()
    (tmp_path / "cells.csv").write_text(text.replace("digits (6, 2)", "x").replace(",0.", ",7."))
    with pytest.raises(RunError, match=r"cells.csv' is damaged: FedRep, x has an accuracy outside of 0 to 1"):
        CellStore(tmp_path)
    (tmp_path / "cells.csv").write_text("column,method\nx,FedRep\n")
    with pytest.raises(RunError, match="is damaged: the line of FedRep, x is none"):
        CellStore(tmp_path)


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_fills_a_part_and_adds_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Experiment("a-table", "title", "a paper", lambda asked: run_table(TABLE, asked), table=TABLE)
    out = str(tmp_path / "t")
    try:
        assert (
            main(["reproduce", "a-table", "--scale", "paper", "--methods", "fedrep", "--seeds", "1", "--out", out]) == 0
        )
        again = ["reproduce", "a-table", "--scale", "paper", "--columns", "digits (6, 2)", "--methods", "apfl"]
        assert main([*again, "--seed", "3", "--seeds", "1", "--out", out]) == 0
        assert main(["reproduce", "a-table", "--scale", "small", "--out", out]) == 2
        assert "holds a-table with --scale paper, not small" in capsys.readouterr().err
        assert main(["reproduce", "--status", out]) == 0
        (apfl,) = (line for line in capsys.readouterr().out.splitlines() if "APFL" in line)
        assert apfl.split()[:2] == ["APFL", "3"]
    finally:
        del experiments["a-table"]
    with (tmp_path / "t" / "cells.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["seed"]) for line in lines] == [("FedRep", "0"), ("APFL", "3")]
    assert "--methods apfl --seed 3 --seeds 1" in lines[1]["command"]
    about = json.loads((tmp_path / "t" / "reproduction.json").read_text())
    assert {cell["method"] for cell in about["cells"]} == {"FedRep", "APFL"}
    page = (tmp_path / "t" / "report.html").read_text()
    assert "The paper's table" in page or "The paper&#x27;s table" in page


def test_an_interrupted_folder_says_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("commonground.papers.tables.fill.train", stop)
    Experiment("a-table", "title", "a paper", lambda asked: run_table(TABLE, asked), table=TABLE)
    out = str(tmp_path / "t")
    try:
        command = ["reproduce", "a-table", "--scale", "paper", "--methods", "fedrep", "--seeds", "1", "--out", out]
        assert main(command) == 130
        assert main(["reproduce", "--status", out]) == 0
    finally:
        del experiments["a-table"]
    assert "0 of 20 cells" in " ".join(capsys.readouterr().out.split())


def test_parts_are_for_tables_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Experiment("no-table", "title", "a paper", lambda _: Outcome())
    try:
        assert main(["reproduce", "no-table", "--methods", "fedrep", "--out", str(tmp_path)]) == 2
        assert main(["reproduce", "no-table", "--precision", "bf16", "--out", str(tmp_path)]) == 2
    finally:
        del experiments["no-table"]
    told = capsys.readouterr().err
    for option in ("methods", "precision"):
        assert f"--{option} is for tables that are filled cell by cell, which no-table is not" in told
    assert main(["reproduce", "fedrep-table1", "--precision", "tf32", "--out", str(tmp_path / "t")]) == 2
    assert "the precision tf32 is one of CUDA devices" in capsys.readouterr().err
    assert main(["reproduce", "--out", str(tmp_path)]) == 2
    assert "name an experiment" in capsys.readouterr().err
    assert main(["reproduce", "fedrep-table1"]) == 2
    assert "--out is missing" in capsys.readouterr().err


@pytest.mark.parametrize("name", [v.name for v in VARIANTS.values() if "model_options" in v.settings])
def test_a_variant_of_the_network_is_one_that_it_has(name: str) -> None:
    letters = VARIANTS[name].data == ("emnist-letters",)
    network, shape = (MLP, (28, 28)) if letters else (ConvNet, (3, 32, 32))
    plain, changed = network(shape, 100), network(shape, 100, **VARIANTS[name].settings["model_options"])
    assert [*changed.state_dict()] != [*plain.state_dict()] or str(changed) != str(plain)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--methods", "nope"], "the table has no method 'nope'"),
        (["--variants", "nope"], "unknown variant 'nope'"),
        (["--columns", "nope"], "'nope'"),
        (["--set", "nope=1"], "unknown setting 'nope'"),
        (["--set", "lr=-1"], "'lr' is -1"),
        (["--methods", "fedrep", "--set", "mu=1"], "unknown setting 'mu'"),
    ],
)
def test_what_cannot_be_measured_leaves_no_folder(
    asked: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "fedrep-table1", "--scale", "paper", *asked, "--out", str(tmp_path / "t")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
