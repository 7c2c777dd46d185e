"""`train --dry-run`: what would be done, and nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from commonground import train
from commonground.cli import main


def test_it_says_what_a_run_does_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["train", "fedrep", "--rounds", "4", "--clients", "10", "--participation", "0.3", "--out", str(out)]
    assert main([*words, "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert not out.exists()
    assert "4, of 3 of 10 clients each" in told
    assert "FedRep: head_epochs=" in told
    run = train("fedrep", rounds=4, clients=10, participation=0.3)
    down, up = (run.summary[f"bytes_{way}"] / 12 / 1000 for way in ("down", "up"))
    assert f"{down:.1f} kB from the server, {up:.1f} kB to it" in told
    assert f"engine {run.summary['engine']} on cpu" in told


def test_what_is_wrong_is_told_as_by_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fedrep", "--model", "cnn", "--dry-run", "--out", str(tmp_path / "run")]) == 2
    assert "needs images of at least 16×16" in capsys.readouterr().err


def test_several_methods_have_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("local", "pooled", "scaffold", "rolora", "fedproto"):
        more = ["--set", "rank=2"] if method == "rolora" else []
        assert main(["train", method, *more, "--rounds", "2", "--dry-run", "--out", str(tmp_path / method)]) == 0
        assert "a dry run" in capsys.readouterr().out
