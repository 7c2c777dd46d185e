"""Tables are filled cell by cell: what is there stays, what is missing is trained, claims wait for three seeds."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from commonground import train
from commonground.cli import main
from commonground.config import RunConfig
from commonground.engine.option_checks import check_options
from commonground.engine.prepare import checked_algorithm
from commonground.errors import ConfigError, RunError
from commonground.models.networks import MLP, ConvNet
from commonground.papers import experiments
from commonground.papers.experiment import Experiment
from commonground.papers.fedrep.fig5 import TABLE as FIGURE_5
from commonground.papers.fedrep.fig6 import TABLE as FIGURE_6
from commonground.papers.fedrep.table1 import TABLE as FEDREP
from commonground.papers.flute.table1 import TABLE as FLUTE
from commonground.papers.outcome import Outcome
from commonground.papers.summary import _claims as claim_rows
from commonground.papers.summary import _verdicts
from commonground.papers.tables.cells import CellStore
from commonground.papers.tables.differences import far_cells
from commonground.papers.tables.fill import fill, work_for
from commonground.papers.tables.judge import outcome_of, run_table
from commonground.papers.tables.queue import ORDER, next_stage, stages
from commonground.papers.tables.readings import reported
from commonground.papers.tables.status import hours_left, missing_work, status_table, tables_in
from commonground.papers.tables.table import PaperColumn, PaperTable, Row
from commonground.papers.tables.variants import PAPER, VARIANTS, variant
from commonground.processor import processor
from tests.papers.small_table import COLUMN, ROWS, SETTINGS, TABLE, request

# -- what the papers' tables are --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [FEDREP, FLUTE], ids=["fedrep", "flute"])
def test_every_cell_has_a_printed_value(table: PaperTable) -> None:
    for row in table.rows:
        for column in table.columns:
            assert table.paper(row, column) is not None
    assert set(table.champions) <= {row.name for row in table.rows}
    assert {key[0] for key in table.values} == {row.printed or row.name for row in table.rows}


def row_of(table: PaperTable, name: str) -> Row:
    return next(row for row in table.rows if row.name == name)


def test_settings_are_those_of_the_papers_appendix() -> None:
    """Collins et al. 2021, App. A.2, by hand."""
    arms = {(column.label, row.name): FEDREP.arm(column, row) for column in FEDREP.columns for row in FEDREP.rows}

    def option(column: str, row: str, key: str) -> object:
        arm = arms[column, row]
        return arm.options.get(key, arm.settings.get(key))

    assert option("CIFAR-10 (100, 2)", "APFL", "alpha") == 0.75
    assert option("CIFAR-10 (100, 5)", "APFL", "alpha") is None  # the default, 0.25
    assert option("CIFAR-100 (100, 20)", "Ditto", "strength") == 1.0
    assert option("CIFAR-10 (100, 2)", "Ditto", "strength") is None  # 0.75
    assert option("FEMNIST (150, 3)", "FedProx", "mu") == option("Sent140 (183, 2)", "FedProx+FT", "mu") == 0.25
    assert option("FEMNIST (150, 3)", "SCAFFOLD", "server_step") == 0.5
    assert option("FEMNIST (150, 3)", "L2GD", "lr") == 0.001
    assert option("CIFAR-100 (100, 5)", "L2GD", "alpha") == 0.1
    for column in FEDREP.columns:
        assert option(column.label, "L2GD", "p") == 0.9
        assert option(column.label, "FedRep", "local_epochs") == (1 if "CIFAR-10 (100," in column.label else 5)
    rounds = [arms[c.label, "FedRep"].settings["rounds"] for c in FEDREP.columns]
    assert rounds == [100, 100, 100, 100, 100, 200, 50]
    assert [FLUTE.arm(c, row_of(FLUTE, "FedRep")).options["head_epochs"] for c in FLUTE.columns] == [1] * 4 + [5] * 4


def test_scale_small_keeps_rounds_and_epochs() -> None:
    small = FEDREP.at_scale("small")
    for now, before in zip(small.columns, FEDREP.columns, strict=False):
        kept = ("rounds", "local_epochs", "participation", "batch_size", "lr", "momentum")
        assert [now.settings[key] for key in kept] == [before.settings[key] for key in kept]
        assert now.settings["clients"] < before.settings["clients"]
    assert small.seeds == 3
    assert "Scale small" in small.notes[0]


def test_rows_and_columns_by_the_names_people_write() -> None:
    assert [row.name for row in FEDREP.choose_rows(["FedAvg+FT", "apfl", "local"])] == [
        "FedAvg+FT",
        "APFL",
        "Local Only",
    ]
    assert [row.name for row in FLUTE.choose_rows(["FLUTE*", "fedrep-star"])] == ["FLUTE*", "FedRep*"]
    assert [c.label for c in FEDREP.choose_columns(["cifar-10 (100,2)"])] == ["CIFAR-10 (100, 2)"]
    assert len(FEDREP.choose_columns([])) == 7
    with pytest.raises(ConfigError, match=r"no method 'fedrap' \(did you mean 'fedrep'\?\)"):
        FEDREP.choose_rows(["fedrap"])
    with pytest.raises(ConfigError, match="no column 'cifar-10 \\(100, 3\\)'"):
        FEDREP.choose_columns(["cifar-10 (100, 3)"])


# -- filling ----------------------------------------------------------------------------------------------------------


def test_a_cell_is_the_run_of_the_same_settings(filled: Path) -> None:
    """No more than `train` with the column's settings; FedAvg and FedAvg+FT are read from one run."""
    store = CellStore(filled)
    run = train("fedrep", "digits", device="cpu", **SETTINGS, options={"head_epochs": 1}, seed=1)
    cell = store.get((COLUMN.label, "FedRep", "", 1))
    assert cell is not None
    assert cell.weights_sha256 == run.summary["weights_sha256"]
    assert (cell.processor, cell.engine) == (processor(), run.summary["engine"])
    assert run.summary["machine"]["processor"] == processor()
    assert cell.personal_last10 == run.personal["last10"]
    assert cell.personal_final == run.personal["mean"]
    assert np.array_equal(store.clients(cell.key), [round(c["personal_accuracy"], 4) for c in run.clients])
    curve = store.curves(COLUMN.label)[cell.key]
    assert [curve[r]["accuracy"] for r in (1, 2, 3)] == [row["personal_accuracy"] for row in run.history]
    one, other = (store.get((COLUMN.label, name, "", 0)) for name in ("FedAvg", "FedAvg+FT"))
    assert one is not None
    assert other is not None
    assert one.weights_sha256 == other.weights_sha256
    assert reported(store, COLUMN, ROWS[1])[0] == one.global_last10
    assert reported(store, COLUMN, ROWS[2])[0] == other.personal_final
    assert not (filled / "runs").exists()


def copied(folder: Path, to: Path) -> None:
    """The cells of a folder, in another one."""
    for path in ("cells.csv", "clients/digits-6-2.csv", "curves/digits-6-2.csv"):
        (to / path).parent.mkdir(exist_ok=True)
        (to / path).write_bytes((folder / path).read_bytes())


def test_a_cell_measured_again_takes_the_place_of_the_first(filled: Path, tmp_path: Path) -> None:
    copied(filled, tmp_path)
    store, key = CellStore(tmp_path), (COLUMN.label, "FedRep", "", 1)
    cell = store.get(key)
    assert cell is not None
    store.add(replace(cell, personal_final=0.5), [0.25, 0.75], {1: {"accuracy": 0.5}})
    again = CellStore(tmp_path)
    assert len(again) == len(store) == len(CellStore(filled))
    assert again.clients(key).tolist() == [0.25, 0.75]
    assert again.curves(COLUMN.label)[key] == {1: {"accuracy": 0.5}}
    changed = again.get(key)
    assert changed is not None
    assert changed.personal_final == 0.5
    assert (
        again.clients((COLUMN.label, "FedRep", "", 0)).tolist()
        == store.clients((COLUMN.label, "FedRep", "", 0)).tolist()
    )


def test_what_is_there_is_not_trained_again(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (filled / "cells.csv").read_bytes()
    monkeypatch.setattr("commonground.papers.tables.fill.train", lambda *_, **__: pytest.fail("it trains again"))
    outcome = run_table(TABLE, request(filled, methods=("fedavg+ft",), seeds=2))
    assert (filled / "cells.csv").read_bytes() == before
    assert {cell.method for cell in outcome.cells} == {"FedRep", "FedAvg", "FedAvg+FT"}  # all that is there


def test_time_over_keeps_the_run_for_the_next_time(tmp_path: Path) -> None:
    """Stopped after its first round, the run ends as an unbroken one."""
    folder = tmp_path / "t"
    outcome = run_table(TABLE, request(folder, methods=("fedrep",), minutes=1e-9))
    assert outcome.cells == []
    assert "Time ran out" in " ".join(outcome.notes)
    store, work = CellStore(folder), work_for(TABLE, [COLUMN], [ROWS[0]], [PAPER], [0], {})
    moments = iter([0.0, 2.0, 2.0, 2.0, 2.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commonground.papers.tables.fill.time.monotonic", lambda: next(moments))
        assert fill(TABLE, work, store, request(folder), until=1.0) == ([], False)
    assert list(folder.glob("runs/*/*/seed-0/checkpoint"))
    run_table(TABLE, request(folder, methods=("fedrep",)))
    run = train("fedrep", "digits", device="cpu", **SETTINGS, options={"head_epochs": 1}, seed=0)
    cell = CellStore(folder).get((COLUMN.label, "FedRep", "", 0))
    assert cell is not None
    assert cell.weights_sha256 == run.summary["weights_sha256"]


def test_cells_of_another_precision_say_so(filled: Path, tmp_path: Path) -> None:
    """They are counted, and no variant is paired with a cell of another precision but the one that changes it."""
    copied(filled, tmp_path)
    asked = {"methods": ("fedrep",), "precision": "bf16"}
    with_it = run_table(TABLE, request(tmp_path, **asked, seed=7, seeds=1))
    store, key = CellStore(tmp_path), (COLUMN.label, "FedRep", "", 7)
    cell = store.get(key)
    assert cell is not None
    run = train("fedrep", "digits", device="cpu", precision="bf16", **SETTINGS, options={"head_epochs": 1}, seed=7)
    assert (cell.precision, cell.weights_sha256) == ("bf16", run.summary["weights_sha256"])
    assert cell.command.endswith("--seed 7 --seeds 1 --precision bf16 --out OUT")
    told = "1 of {} cells are of runs whose products were computed in bf16 (weights, averages and losses in fp32)"
    mains = [c for c in store.all() if not c.variant]
    assert any(note.startswith(told.format(len(mains))) for note in with_it.notes)
    assert {c.precision for c in store.all() if c != cell} == {"fp32"}  # what was there stays

    def changes(outcome: Outcome) -> list[tuple[Any, Any]]:
        try:
            return [(row["change"], row["seeds"]) for row in outcome.table("What moves a cell").rows]
        except KeyError:
            return []

    changed = run_table(TABLE, request(tmp_path, **asked, variants=("no-momentum", "bf16"), seed=1, seeds=1))
    assert changes(changed) == [(VARIANTS["bf16"].what, 1)]
    both = run_table(TABLE, request(tmp_path, **asked, variants=("no-momentum", "bf16"), seed=7, seeds=1))
    assert changes(both) == [("plain SGD", 1), (VARIANTS["bf16"].what, 1)]


def test_a_cell_that_diverges_is_told_and_has_no_value(tmp_path: Path) -> None:
    outcome = run_table(TABLE, request(tmp_path, methods=("fedrep",), overrides={"lr": 1e30}))
    cell = CellStore(tmp_path).get((COLUMN.label, "FedRep", "", 0))
    assert cell is not None
    assert cell.personal_last10 is None
    assert cell.diverged
    assert outcome.cells == []
    assert "FedRep, digits (6, 2), seed 0 has no value" in " ".join(outcome.notes)


def test_a_column_without_its_data_is_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    column = PaperColumn("CIFAR-100 (100, 5)", ("cifar100", "100", "5"), "cifar100", {**SETTINGS, "clients": 100})
    table = replace(TABLE, columns=(column, COLUMN))
    outcome = run_table(table, request(tmp_path / "out", methods=("fedrep", "apfl"), data_dir=str(tmp_path / "empty")))
    assert {cell.column for cell in outcome.cells} == {COLUMN.label}
    assert [note for note in outcome.notes if note.startswith("CIFAR-100 (100, 5) was left out")]


# -- judging ----------------------------------------------------------------------------------------------------------


def test_no_claim_on_fewer_than_three_seeds(filled: Path, tmp_path: Path) -> None:
    outcome = outcome_of(TABLE, CellStore(filled))
    claim = next(c for c in outcome.claims if c.claim == "FedRep above FedAvg on digits (6, 2)")
    assert claim.paper == pytest.approx(87.70 - 42.65)
    assert (claim.seeds, claim.holds) == (2, None)
    store = CellStore(filled)
    ours, theirs = (reported(store, COLUMN, row) for row in ROWS[:2])
    assert claim.measured == pytest.approx(100 * np.mean([ours[s] - theirs[s] for s in (0, 1)]))
    cells = {cell.method: cell for cell in outcome.cells}
    assert cells["FedRep"].paper == 87.70
    assert cells["FedRep"].low is not None
    run_table(TABLE, request(tmp_path, methods=("fedrep", "fedavg"), seeds=3))
    claims = {c.claim: c for c in outcome_of(TABLE, CellStore(tmp_path)).claims}
    assert claims["FedRep above FedAvg on digits (6, 2)"].holds is True


def test_a_claim_says_where_it_compares_other_precisions(filled: Path, tmp_path: Path) -> None:
    copied(filled, tmp_path)
    name = "FedRep above FedAvg on digits (6, 2)"
    plain = outcome_of(TABLE, CellStore(tmp_path))
    assert {claim.remark for claim in plain.claims} == {""}
    assert "remark" not in {column.name for column in plain.claim_table().columns}
    store = CellStore(tmp_path)
    cell = store.get((COLUMN.label, "FedAvg", "", 1))
    assert cell is not None
    store.add(replace(cell, precision="bf16"), store.clients(cell.key), store.curves(COLUMN.label)[cell.key])
    mixed = outcome_of(TABLE, CellStore(tmp_path))
    claims = {claim.claim: claim for claim in mixed.claims}
    assert claims[name].remark == "1 of 2 seeds compare bf16 with fp32"
    assert claims["FedRep above FedAvg+FT on digits (6, 2)"].remark == ""
    about = {"scale": "paper", "claims": [asdict(claim) for claim in mixed.claims]}
    shown = {row["claim"] for row in claim_rows("", _verdicts("here", about)).rows}
    assert f"{name} (1 of 2 seeds compare bf16 with fp32)" in shown


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    outcome = run_table(TABLE, request(tmp_path, methods=("apfl",)))
    assert (outcome.cells[0].low, outcome.cells[0].seeds) == (None, 1)


def test_a_variant_is_paired_with_the_papers_setting(filled: Path, tmp_path: Path) -> None:
    copied(filled, tmp_path)
    outcome = run_table(
        TABLE, request(tmp_path, methods=("fedrep", "fedavg"), variants=("no-momentum", "every-round"), seeds=2)
    )
    store = CellStore(tmp_path)
    lines = [row for row in outcome.table("What moves a cell").rows if row["method"] == "FedRep"]
    by_change = {line["change"]: line for line in lines}
    base, plain = (reported(store, COLUMN, ROWS[0], name) for name in ("", "no-momentum"))
    moved = 100 * np.mean([plain[s] - base[s] for s in (0, 1)])
    assert by_change["plain SGD"]["moves it by"] == pytest.approx(moved, abs=0.006)
    assert abs(moved) > 0.5
    best = by_change["the best tested round, not the mean of ten"]["moves it by"]
    assert best == pytest.approx(
        100
        * np.mean(
            [
                c.best - c.personal_last10
                for c in store.all()
                if c.variant == "every-round"
                and c.method == "FedRep"
                and c.best is not None
                and c.personal_last10 is not None
            ]
        ),
        abs=0.006,
    )
    far = {row.name for _, row, _ in far_cells(TABLE, store)}
    assert "FedAvg" in far


def test_a_setting_that_a_method_does_not_use_is_told_or_refused(tmp_path: Path) -> None:
    """FedRep's steps can be clipped, SCAFFOLD's cannot; nobody's server has a rate without its optimizer."""
    table = replace(TABLE, rows=(ROWS[0], Row("SCAFFOLD", "scaffold")))
    arm = {row.name: table.arm(COLUMN, row, clip_norm=1.0).settings for row in table.rows}
    assert ("clip_norm" in arm["FedRep"], "clip_norm" in arm["SCAFFOLD"]) == (True, False)
    outcome = run_table(table, request(tmp_path / "both", overrides={"clip_norm": 1.0}, seeds=1))
    assert "--set clip_norm=1.0 says nothing to SCAFFOLD: measured without it." in outcome.notes
    with pytest.raises(ConfigError, match=r"--set clip_norm=1\.0 says nothing to SCAFFOLD; leave it out"):
        run_table(table, request(tmp_path / "one", overrides={"clip_norm": 1.0}, methods=("scaffold",), seeds=1))


def test_a_setting_that_would_undo_a_variant_is_refused(tmp_path: Path) -> None:
    asked = {"methods": ("fedavg",), "variants": ("paper", "lr-0.03"), "seeds": 1}
    said = r"--set lr=0\.02 would undo the variant lr-0\.03 of FedAvg, which changes lr itself; leave one of them out"
    with pytest.raises(ConfigError, match=said):
        run_table(TABLE, request(tmp_path / "one", **asked, overrides={"lr": 0.02}))
    assert not len(CellStore(tmp_path / "one"))
    other = run_table(TABLE, request(tmp_path / "other", **asked, overrides={"momentum": 0.25}))
    assert other.table("What moves a cell").rows
    base, changed = (CellStore(tmp_path / "other").get((COLUMN.label, "FedAvg", one, 0)) for one in ("", "lr-0.03"))
    assert base is not None
    assert changed is not None
    assert base.weights_sha256 != changed.weights_sha256


def test_a_setting_is_refused_only_where_the_variant_changes_it() -> None:
    """Of the methods that are asked for, what a variant changes of single ones alone."""
    constants, column = [VARIANTS["authors-constants"]], FEDREP.columns[:1]
    with pytest.raises(ConfigError, match=r"--set lr=0\.02 would undo the variant authors-constants of L2GD"):
        work_for(FEDREP, column, FEDREP.rows, constants, [0], {"lr": 0.02})
    assert work_for(FEDREP, column, [row_of(FEDREP, "Fed-MTL")], constants, [0], {"lr": 0.02})
    assert work_for(FEDREP, column, [row_of(FEDREP, "FedAvg")], [PAPER], [0], {"lr": 0.02})


def test_runs_of_another_precision_have_folders_of_their_own(tmp_path: Path) -> None:
    """A run that was interrupted in one precision is not gone on with in another."""
    work = work_for(TABLE, [COLUMN], ROWS, [PAPER, VARIANTS["bf16"]], [0], {})
    places = [one.place(tmp_path, precision) for one in work for precision in ("fp32", "tf32", "bf16")]
    assert len(set(places)) == 3 * len(work)


def test_variants_change_what_they_say() -> None:
    assert variant("paper") is variant("") is PAPER
    with pytest.raises(ConfigError, match=r"unknown variant 'augmant' \(did you mean 'augment'"):
        variant("augmant")
    for name, one in VARIANTS.items():
        fitting = [
            (table.arm(column, row), table.arm(column, row, one))
            for table in (FEDREP, FLUTE)
            for column in table.columns
            for row in table.rows
            if one.fits(row.algorithm, column.data, table.arm(column, row).settings)
        ]
        assert fitting, name
        for base, changed in fitting:
            assert (base.options, base.settings) != (changed.options, changed.settings), (name, base.title)
    l2gd = FEDREP.arm(FEDREP.columns[1], row_of(FEDREP, "L2GD"), VARIANTS["authors-constants"])
    assert (l2gd.settings["lr"], l2gd.options) == (0.025, {"p": 0.9, "authors_code": True})
    fedmtl = FEDREP.arm(FEDREP.columns[1], row_of(FEDREP, "Fed-MTL"), VARIANTS["authors"])
    assert (fedmtl.options, fedmtl.settings["partition"]) == ({"strength": 0.0}, "shards:repeats=yes")
    assert not VARIANTS["flute-authors"].fits("fedrep", "cifar10", {})
    assert not VARIANTS["ft-5"].fits("fedrep", "cifar10", {})
    assert not VARIANTS["dropout-after-1"].fits("fedrep", "cifar10", {})
    tuned = {work.arm.row.name for work in work_for(FLUTE, FLUTE.columns[:1], FLUTE.rows, [VARIANTS["ft-5"]], [0], {})}
    assert tuned == {"FedAvg-FT", "FedAvg-FT, all layers"}
    steps = work_for(FEDREP, FEDREP.columns[:1], FEDREP.rows, [VARIANTS["no-momentum"]], [0], {})
    plain = {arm.row.name for work in steps for arm in work.arms}
    assert {"SCAFFOLD+FT", "FedAvg", "FedAvg+FT"} <= plain  # a momentum moves SCAFFOLD's fine-tuning alone
    assert "SCAFFOLD" not in plain
    assert not VARIANTS["by-samples"].fits("local", "cifar10", {})
    assert VARIANTS["no-momentum"].fits("scaffold", "cifar10", {"finetune_epochs": 10})
    assert not VARIANTS["no-momentum"].fits("scaffold", "cifar10", {})


@pytest.mark.parametrize("table", [FEDREP, FLUTE, FIGURE_5, FIGURE_6], ids=lambda table: table.name)
def test_every_run_of_a_table_is_one_that_its_method_takes(table: PaperTable) -> None:
    for column in table.columns:
        for one in VARIANTS.values():
            for row in table.rows:
                if one.fits(row.algorithm, column.data, table.arm(column, row).settings):
                    arm = table.arm(column, row, one)
                    settings = {"algorithm": row.algorithm, "data": column.data, "options": dict(arm.options)}
                    config = RunConfig.make({**arm.settings, **settings})
                    check_options(config, checked_algorithm(config))
        for row in table.rows:
            arm = table.arm(column, row, momentum=0.9, weighting="samples", clip_norm=1.0)
            settings = {"algorithm": row.algorithm, "data": column.data, "options": dict(arm.options)}
            checked_algorithm(RunConfig.make({**arm.settings, **settings}))


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


def test_status_counts_and_estimates(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = CellStore(filled)
    table = replace(TABLE, seeds=2)
    assert status_table(table, store).title == "a-table: 6 of 8 cells"
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
    assert table.title == "a-table: 0 of 8 cells"
    assert table.rows[0]["digits (6, 2)"] == "0 of 2; also 41"


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
        assert "1 of 5: 3" in capsys.readouterr().out
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
