"""The experiments: claims judged the right way, tables carried out as said, results where they are promised."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from commonground.cli import main
from commonground.papers import experiments
from commonground.papers.claims import claim
from commonground.papers.experiment import Experiment
from commonground.papers.fedrep.fig6 import new_clients
from commonground.papers.figures import Curve, Figure
from commonground.papers.outcome import Outcome
from commonground.table import Table


def test_reproduce_writes_claims_figures_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = Curve([1, 2], [0.5, 0.6], [0.4, 0.5], [0.6, 0.7])
    outcome = Outcome(
        claims=[claim("a above b", "a paper", 3.0, [20.0] * 3, "above")],
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
