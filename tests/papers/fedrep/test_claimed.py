"""What is judged of FedRep's linear figures: what the paper shows, not whatever is measured beside it."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from commonground.papers.fedrep.theorem1 import Theorem1Settings, _judge
from commonground.theory.linear import SubsetExtremes, Trajectory
from tests.papers.fedrep.test_linear import reproduce


def test_figure_1_is_judged_at_the_papers_m(tmp_path: Path) -> None:
    assert reproduce("fedrep-fig1", tmp_path, "m=[3,5,8]", "n=20", "d=6", "rounds=15") == 0
    texts = [claim["claim"] for claim in json.loads((tmp_path / "results.json").read_text())]
    assert [text.split(" of the signal ")[1].split(" (")[0] for text in texts if text.startswith("FedRep's")] == [
        "at m = 5"
    ] * 2
    about = json.loads((tmp_path / "reproduction.json").read_text())
    (note,) = (note for note in about["notes"] if "The paper's figure has m = 5, 10, 20" in note)
    assert "of 3 seeds" in note
    assert "at m = 3 (the median in" in note
    assert {row["m"] for row in about["tables"]["mean squared error by samples per client"]} == {3, 5, 8}


def test_theorem_1_is_judged_at_the_largest_m(tmp_path: Path) -> None:
    """It speaks of m large enough: one that is too small is shown and refutes nothing."""
    assert reproduce("fedrep-theorem1", tmp_path, "n=20", "m=[6,2]", "r=[1.0,0.25]", "rounds=8") == 0
    texts = [claim["claim"] for claim in json.loads((tmp_path / "results.json").read_text())]
    assert len(texts) == 4
    assert all("m = 6 " in text for text in texts)
    tables = json.loads((tmp_path / "reproduction.json").read_text())["tables"]
    assert {row["m"] for row in tables["what the theorem says and what was measured"]} == {2, 6}


def test_theorem_1_says_nothing_of_too_large_a_step(tmp_path: Path) -> None:
    """The factor's square is negative there, which no distance could be below."""
    assert reproduce("fedrep-theorem1", tmp_path, "n=20", "m=20", "r=[1.0]", "rounds=4", "step=4") == 0
    assert {claim["holds"] for claim in json.loads((tmp_path / "results.json").read_text())} == {None}
    notes = json.loads((tmp_path / "reproduction.json").read_text())["notes"]
    (note,) = (note for note in notes if "the theorem says nothing there" in note)
    assert "is negative at m = 20, r = 1 (" in note


def test_theorem_1_is_open_where_no_round_is_judged() -> None:
    """From a start that is B* but for rounding."""
    one = torch.ones(200, dtype=torch.float64)
    extremes = SubsetExtremes(one, one, "all")
    zeros = torch.zeros(200, 4, dtype=torch.float64)
    there = Trajectory(zeros, zeros, zeros, one, one, one)
    row, claims, _, _ = _judge(Theorem1Settings(rounds=3), 1.0, 5, 100, 0.1, extremes, extremes, there)
    assert row["seeds within it in every round"] == "200 of 200"
    assert [claim.holds for claim in claims] == [None, None]
