"""What is judged of FedRep's linear figures: what the paper shows, not whatever is measured beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedrep-fig1", ["m=[1,2]", "n=20", "d=6", "rounds=3"]),
        ("fedrep-fig4", ["m=1", "n=20", "d=6", "new_clients=6", "rounds=3"]),
        ("fedrep-theorem1", ["m=[1,2]", "n=20", "r=1.0", "rounds=3"]),
    ],
)
def test_fedrep_is_not_judged_where_it_cannot_move(name: str, settings: list[str], tmp_path: Path) -> None:
    assert reproduce(name, tmp_path, *settings) == 0
    about = json.loads((tmp_path / "reproduction.json").read_text())
    of_fedrep = [
        claim
        for claim in about["claims"]
        if claim["paper"] != "1 (derived here)"
        and (name == "fedrep-theorem1" or "FedRep" in claim["claim"].split(" (distance")[0])
    ]
    assert of_fedrep
    for claim in of_fedrep:
        assert claim["holds"] is None
        assert "contradicted" not in claim["claim"]
    (note,) = (note for note in about["notes"] if "FedRep stays at its start" in note)
    assert note.startswith("At m ≤ k (here m = 1")
    assert note.endswith("What the paper says of it is shown and not judged.")


def test_figure_1_is_judged_at_the_m_at_which_fedrep_moves(tmp_path: Path) -> None:
    assert reproduce("fedrep-fig1", tmp_path, "m=[5,8]", "k=5", "n=20", "d=8", "rounds=3") == 0
    about = json.loads((tmp_path / "reproduction.json").read_text())
    texts = [claim["claim"] for claim in about["claims"] if claim["claim"].startswith("FedRep's")]
    assert len(texts) == 2
    assert all(" at m = 8 (" in text for text in texts)
    (note,) = (note for note in about["notes"] if "FedRep stays at its start" in note)
    assert note.endswith("and FedRep stays at its start.")


def test_theorem_1_is_open_where_no_round_is_judged() -> None:
    """From a start that is B* but for rounding."""
    one = torch.ones(200, dtype=torch.float64)
    extremes = SubsetExtremes(one, one, "all")
    zeros = torch.zeros(200, 4, dtype=torch.float64)
    there = Trajectory(zeros, zeros, zeros, one, one, one)
    row, claims, _, _ = _judge(Theorem1Settings(rounds=3), 1.0, 5, 100, 0.1, extremes, extremes, there)
    assert row["seeds within it in every round"] == "200 of 200"
    assert [claim.holds for claim in claims] == [None, None]
