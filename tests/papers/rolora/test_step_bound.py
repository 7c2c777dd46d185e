"""RoLoRA with bounded steps: what a late fall is, and the experiment on the small digits."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commonground.cli import main
from commonground.papers.rolora.step_bound import late_falls


def test_a_late_fall_by_hand() -> None:
    measured: Any = SimpleNamespace(curves=np.array([
        [0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.8, 0.6],  # from 80 to 60 % in the last third; what was before is not late
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.3, 0.6],
    ]))  # fmt: skip
    assert late_falls(measured) == pytest.approx([20, 0, 40])


def test_the_experiment(tmp_path: Path) -> None:
    settings = ["data=digits", "train_samples=300", "test_samples=100", "rounds=3", "rates=[0.1,2.0]", "bounds=[0.1]"]
    command = ["reproduce", "rolora-step-bound", "--out", str(tmp_path), "--seeds", "2", "--quiet"]
    for setting in [*settings, "local_epochs=1", "linear_rounds=10", "samples=200"]:
        command += ["--set", setting]
    assert main(command) == 0
    whole = json.loads((tmp_path / "reproduction.json").read_text("utf-8"))
    linear = [claim for claim in whole["claims"] if claim["claim"].startswith("Linear problem")]
    assert [claim["measured"] for claim in linear] == [1.0, 1.0]
    columns = {cell["column"] for cell in whole["cells"]}
    assert columns == {"rate 0.1", "rate 2"}
    by = {(cell["column"], cell["method"]): cell["measured"] for cell in whole["cells"]}
    assert by["rate 2", "RoLoRA"] != by["rate 2", "RoLoRA, step bound 0.1"]


def test_what_is_no_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "rolora-step-bound", "--out", str(tmp_path), "--set", "bounds=[0]"]) == 2
    assert "bounds and shares are positive numbers" in capsys.readouterr().err
