"""What the server's terminal shows of a run's rounds, and of a demo that cannot begin."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from commonground.errors import ConfigError
from commonground.network.demo import run_deploy_demo
from commonground.network.running import _Shown


def test_shares_are_in_percent_and_other_figures_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"round": 3, "train_loss": 0.25, "participants": 4, "seconds": 1.0, "eval_seconds": 0.5}
    shown = _Shown(quiet=False)
    shown.hear("round", {**row, "personal_accuracy": 0.963, "global_accuracy": None, "missing": 1})
    shown.hear("round", {**row, "train_loss": None, "personal_rmse": 12.5})
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "round 3  loss 0.25  personal accuracy 96.3 %  4 clients, 1.5 s  1 missing"
    assert said[1] == "round 3  personal RMSE 12.50  4 clients, 1.5 s"


def test_a_demo_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with pytest.raises(ConfigError, match="there is something in"):
        run_deploy_demo(1, tmp_path, True)
