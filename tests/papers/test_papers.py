"""The experiments: claims judged the right way, tables carried out as said, results where they are promised."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from commonground.cli import main
from commonground.papers import experiments
from commonground.papers.accuracy_table import PaperColumn, PaperTable, run_table
from commonground.papers.claims import difference
from commonground.papers.experiment import Experiment, Request, printed
from commonground.papers.fedrep.fig6 import new_clients
from commonground.papers.fedrep.table1 import TABLE as FEDREP
from commonground.papers.figures import Curve, Figure
from commonground.papers.flute.table1 import TABLE as FLUTE
from commonground.papers.outcome import Outcome
from commonground.table import Table


@pytest.mark.parametrize("table", [FEDREP, FLUTE], ids=["fedrep", "flute"])
def test_every_method_and_column_is_in_the_printed_table(table: PaperTable) -> None:
    keys = {(r["method"], r["dataset"], r["clients"], r["classes_per_client"]) for r in printed(table.printed)}
    for name in table.methods:
        for column in table.columns:
            assert (name, *column.key) in keys
    assert set(table.champions) <= set(table.methods)


def test_a_table_measures_every_cell_and_judges_every_pair(tmp_path: Path) -> None:
    settings = {"clients": 6, "classes_per_client": 2, "rounds": 2, "local_epochs": 1}
    table = PaperTable(
        "fedrep-table1",
        "test",
        {"FedRep": "fedrep:head_epochs={local_epochs}", "FedAvg": "fedavg", "FedAvg+FT": "fedavg+ft"},
        [PaperColumn("digits (6, 2)", ("cifar10", "100", "2"), "digits", settings)],
        ["FedRep"],
    )
    outcome = run_table(table, table.columns, Request(tmp_path, seed=4, quiet=True), seeds=2)
    cells = {cell.method: cell for cell in outcome.cells}
    assert set(cells) == {"FedRep", "FedAvg", "FedAvg+FT"}
    assert cells["FedRep"].paper == 87.70
    comparison = json.loads((tmp_path / "digits-6-2" / "comparison.json").read_text())
    # FedAvg and FedAvg+FT are one run, told apart by what is tested.
    assert [m["method"] for m in comparison["methods"]] == ["fedrep:head_epochs=1", "fedavg+ft"]
    tuned = comparison["methods"][1]
    assert cells["FedAvg+FT"].measured == pytest.approx(100 * tuned["personal_accuracy"]["mean"])
    assert cells["FedAvg"].measured != cells["FedAvg+FT"].measured
    claims = {claim.claim: claim for claim in outcome.claims}
    claim = claims["FedRep above FedAvg on digits (6, 2)"]
    assert claim.paper == pytest.approx(87.70 - 42.65)
    assert claim.measured == pytest.approx(cells["FedRep"].measured - cells["FedAvg"].measured)
    assert claim.seeds == 2


def test_a_column_without_its_data_is_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    table = PaperTable(
        "fedrep-table1",
        "test",
        {"FedRep": "fedrep"},
        [
            PaperColumn(
                "CIFAR-100 (100, 5)", ("cifar100", "100", "5"), "cifar100", {"clients": 100, "classes_per_client": 5}
            )
        ],
        ["FedRep"],
    )
    request = Request(tmp_path / "out", data_dir=str(tmp_path / "empty"), quiet=True)
    outcome = run_table(table, table.columns, request, seeds=1)
    assert outcome.cells == []
    assert "CIFAR-100 (100, 5)" in outcome.notes[0]


def test_reproduce_writes_claims_figures_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = Curve([1, 2], [0.5, 0.6], [0.4, 0.5], [0.6, 0.7])
    values = np.array([0.5, 0.7])
    outcome = Outcome(
        claims=[difference("a above b", "a paper", 3.0, ([0.6], [values]), ([0.4], [values - 0.2]))],
        figures={"a figure": Figure("epochs", "accuracy", {"FedRep": line}, log_y=True)},
        tables=[Table.of("Rounds needed", [{"method": "FedRep", "rounds": 12}])],
        notes=["Reduced: everything."],
    )
    Experiment("a-test", "title", "a paper", lambda request: outcome)
    try:
        assert main(["reproduce", "a-test", "--out", str(tmp_path)]) == 0
    finally:
        del experiments["a-test"]
    claims = json.loads((tmp_path / "results.json").read_text())
    assert set(claims[0]) == {"claim", "source", "paper", "measured", "low", "high", "seeds", "holds"}
    assert claims[0]["holds"] is True
    assert {p.suffix for p in (tmp_path / "figures").glob("a-figure.*")} == {".png", ".csv"}
    page = (tmp_path / "report.html").read_text()
    assert "Reduced: everything." in page
    assert "a above b" in capsys.readouterr().out


def test_unknown_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "no-such", "--out", str(tmp_path / "x")]) == 2
    assert "fedrep-table1" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("seed", range(4))
def test_new_clients_of_figure_6_have_what_the_paper_gives_them(seed: int) -> None:
    root = os.environ.get("COMMONGROUND_DATA")
    if not root or not (Path(root) / "MNIST").is_dir():
        pytest.skip("needs the real files: COMMONGROUND_DATA must name a folder that has MNIST")
    digits = new_clients(seed, root)
    assert digits.clients == 100
    assert set(digits.train_sizes) == {500}
    assert len(set(digits.test_sizes)) == 1
    assert 90 <= digits.test_sizes[0] <= 100
    assert all(len(np.unique(digits.y_train[digits.train_indices(c)])) == 5 for c in range(100))
