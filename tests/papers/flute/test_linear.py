"""FLUTE's experiments of theory from the command line, at tiny sizes, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from commonground import cli

TINY = {
    "flute-fig1": ["d=5", "ks=[1, 2]", "clients=[6]", "samples=[8]", "rounds=30", "horizons=[10]"],
    "flute-fig3": ["d=5", "ks=[2]", "clients=[6, 8]", "samples=[4]", "rounds=20", "every=10"],
    "flute-fig4": ["d=5", "k=2", "clients=6", "samples=[4]", "rounds=60", "diverging=[40.0]"],
    "flute-theorem5.5": ["d=5", "clients=6", "samples=[50, 200]", "practical_ks=[1]", "sample_rounds=60", "step=0.03"],
}


@pytest.mark.parametrize("name", TINY)
def test_experiments_run_small(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = [part for setting in TINY[name] for part in ("--set", setting)]
    assert cli.main(["reproduce", name, *options, "--seeds", "3", "--out", str(out), "--quiet"]) == 0
    claims = json.loads((out / "results.json").read_text())
    assert claims
    for claim in claims:
        assert set(claim) == {"claim", "source", "paper", "measured", "low", "high", "seeds", "holds"}
        assert np.isfinite([claim["measured"], claim["low"], claim["high"]]).all()
    figures = out / "figures"
    assert {p.stem for p in figures.glob("*.png")} == {p.stem for p in figures.glob("*.csv")} != set()


@pytest.mark.parametrize(
    ("name", "setting", "text"),
    [
        ("flute-fig1", "ks=[11]", "k is 11"),
        ("flute-fig3", "samples=[0]", "samples is 0"),
        ("flute-fig3", "noise_variance=-1", "noise_variance is -1"),
        ("flute-fig4", "ratios=[1.0, 2.5]", "at most 2"),
        ("flute-fig4", "alpha=0.0", "alpha is 0"),
        ("flute-theorem5.5", "lambda_after=1.8", "lambda_after"),
        ("flute-theorem5.5", "step=0.9", "too large"),
        ("flute-theorem5.5", "lambda_after=1.79", "rounds"),
        ("flute-fig3", "step=4.0", "diverges"),
    ],
)
def test_experiments_refuse_in_one_sentence(
    name: str, setting: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert cli.main(["reproduce", name, "--set", setting, "--seeds", "2", "--out", str(out), "--quiet"]) == 2
    assert text in capsys.readouterr().err
    assert not (out / "results.json").exists()
