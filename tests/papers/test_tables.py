"""Tables are filled cell by cell: what is there stays, what is missing is trained, claims wait for three seeds."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commonground import train
from commonground.config import RunConfig
from commonground.engine.option_checks import check_options
from commonground.engine.prepare import checked_algorithm
from commonground.errors import ConfigError
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
from commonground.papers.tables.readings import reported
from commonground.papers.tables.table import PaperColumn, PaperTable, Row
from commonground.papers.tables.variants import PAPER, VARIANTS, variant
from commonground.processor import processor
from tests.papers.small_table import COLUMN, ROWS, SETTINGS, TABLE, copied, request

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
    answers = iter([True, False])  # before the run, and after its first round
    assert fill(TABLE, work, store, request(folder), lambda: next(answers)) == ([], False)
    assert next(answers, None) is None
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


def test_a_claim_is_what_the_column_prints_not_what_the_text_says_of_all(tmp_path: Path) -> None:
    """The paper prints FedAvg 42.65 and FedRep 87.70: with FedAvg as its champion that column says the opposite."""
    table = replace(TABLE, champions=("FedAvg",))
    run_table(TABLE, request(tmp_path, methods=("fedrep", "fedavg"), seeds=3))
    claims = {c.claim: c for c in outcome_of(table, CellStore(tmp_path)).claims}
    assert "FedAvg above FedRep on digits (6, 2)" not in claims
    found = claims["FedAvg below FedRep on digits (6, 2)"]
    assert found.paper == pytest.approx(42.65 - 87.70)
    assert found.measured < 0
    assert found.holds is True


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
