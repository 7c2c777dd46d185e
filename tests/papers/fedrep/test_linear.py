"""The linear figures of FedRep from the command line, at tiny settings; their judgements."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from commonground.cli import main
from commonground.papers.fedrep.linear import first_round, show_rounds

TINY = {
    "fedrep-fig1": ["m=[2,4,8]", "n=20", "d=6", "rounds=15"],
    "fedrep-fig3": ["n=[20,30]", "rounds=12", "tuning_seeds=2", "steps=[0.2]", "head_step_grid=[0.1]"],
    "fedrep-fig4": ["n=20", "d=6", "m=5", "new_clients=6", "rounds=15"],
    "fedrep-fig7": ["n=[10,20]", "m=6", "rounds=12", "tuning_seeds=2", "steps=[0.2]", "head_step_grid=[0.1]"],
    "fedrep-theorem1": ["n=20", "m=[2,6]", "r=[1.0,0.25]", "rounds=8"],
}


def reproduce(name: str, out: Path, *settings: str) -> int:
    assignments = [part for each in settings for part in ("--set", each)]
    return main(["reproduce", name, "--seeds", "3", "--out", str(out), "--quiet", *assignments])


@pytest.mark.parametrize("name", list(TINY))
def test_an_experiment_leaves_claims_and_figures(name: str, tmp_path: Path) -> None:
    assert reproduce(name, tmp_path, *TINY[name]) == 0
    claims = json.loads((tmp_path / "results.json").read_text())
    assert claims
    for claim in claims:
        assert set(claim) == {"claim", "source", "paper", "measured", "low", "high", "seeds", "holds"}
        assert np.isfinite([claim["measured"], claim["low"], claim["high"]]).all()
        assert claim["seeds"] == 3
    for suffix in ("png", "csv"):
        assert list((tmp_path / "figures").glob(f"*.{suffix}"))
    about = json.loads((tmp_path / "reproduction.json").read_text())
    assert about["settings"]["rounds"] in (8, 12, 15)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fedrep-fig3", ["n=5", "r=0.1"], "at least 1 client must take part"),
        ("fedrep-fig1", ["k=30"], "k is 30; it must not exceed min(d, n)"),
        ("fedrep-fig7", ["noise=-1"], "noise"),
        ("fedrep-fig4", ["m=0"], "greater than or equal to 1"),
        ("fedrep-theorem1", ["step=0"], "greater than 0"),
        ("fedrep-theorem1", ["step=300", "rounds=30", "n=20", "m=6", "r=1.0"], "FedRep diverges at step size 300"),
        ("fedrep-fig3", ["step=60", "head_step=0.1", "n=20", "rounds=30"], "FedRep diverges at step size 60"),
        ("fedrep-fig7", ["step=0.2", "head_step=9", "n=20", "m=5"], "GD-GD (representation; head step 9) diverges"),
    ],
)
def test_what_makes_no_sense_leaves_nothing(
    name: str, settings: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(name, tmp_path / "out", *settings) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out" / "results.json").exists()


def test_rounds_that_are_never_reached_are_censored() -> None:
    distance = torch.tensor([[0.8, 0.3, 0.1], [0.8, 0.7, 0.6], [0.8, 0.9, 0.2], [0.1, 0.9, 0.9]])
    first = first_round(distance, torch.full((4,), 0.4))
    assert first.tolist() == [1, 3, 2, 0]
    assert show_rounds(first, 2) == "2"
    assert show_rounds(np.array([1, 3, 3]), 2) == "> 2"
