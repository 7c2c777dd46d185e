"""RoLoRA's experiments of theory, at tiny sizes: what they leave behind, and what they refuse."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from commonground.cli import main
from commonground.papers.outcome import Outcome
from commonground.papers.rolora.ffa import FFASettings, judge_frozen_clients_that_differ

TINY = {
    "rolora-theory": [
        *("clients=2", "samples=30", "dimension=3", "rounds=4", "epsilon=0.01", "vary_clients=[1, 2]"),
        *("vary_samples=[4]", "vary_dimension=[2]", "ffa_clients=[1, 2]", "ffa_samples=[2, 6]", "ffa_draws=20"),
    ],
    "rolora-step-size": [
        *("clients=2", "dimension=3", "samples=[1, 50]", "shares=[0.25, 0.5, 1.0, 1.2]", "rounds=6"),
        *("long_rounds=300", "deltas=[0.5]"),
    ],
    "rolora-heterogeneous": [
        *("clients=3", "dimension=3", "samples=20", "rounds=6", "gammas=[0, 1.0]", "vary_samples=[5]"),
        *("ffa_samples=[6]", "ffa_draws=20"),
    ],
}


def _run(name: str, out: Path, *settings: str) -> int:
    arguments = [part for setting in (*TINY[name], *settings) for part in ("--set", setting)]
    return main(["reproduce", name, "--seeds", "3", "--seed", "5", "--quiet", "--out", str(out), *arguments])


def _claims(out: Path) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = json.loads((out / "results.json").read_text("utf-8"))
    for claim in claims:
        assert set(claim) == {"claim", "source", "paper", "measured", "low", "high", "seeds", "holds"}
        assert all(math.isfinite(claim[key]) for key in ("measured", "low", "high"))
        assert claim["seeds"] == 3
    return claims


@pytest.mark.parametrize("name", TINY)
def test_an_experiment_leaves_claims_and_figures(name: str, tmp_path: Path) -> None:
    assert _run(name, tmp_path) == 0
    assert _claims(tmp_path)
    figures = {path.suffix for path in (tmp_path / "figures").iterdir()}
    assert figures == {".png", ".csv"}
    about = json.loads((tmp_path / "reproduction.json").read_text("utf-8"))
    assert about["settings"]["clients"] <= 3


def test_a_step_that_does_not_converge_is_named_and_judged(tmp_path: Path) -> None:
    assert _run("rolora-theory", tmp_path, "step=3") == 0
    claims = _claims(tmp_path)
    assert next(claim for claim in claims if claim["claim"].startswith("At η = 3,"))["holds"] is False
    notes = json.loads((tmp_path / "reproduction.json").read_text("utf-8"))["notes"]
    assert any("does not converge" in note and "0.5774" in note for note in notes)
    assert not any("Theorem 5.4" in claim["source"] and "η = 3" in claim["claim"] for claim in claims)


def test_fewer_samples_than_the_lemma_asks_for_are_shown_and_not_judged(tmp_path: Path) -> None:
    few = ("clients=2", "dimension=6", "vary_dimension=[6]")
    assert _run("rolora-theory", tmp_path / "few", *few, "samples=5") == 0
    assert _run("rolora-theory", tmp_path / "enough", *few, "samples=6") == 0
    found = {name: json.loads((tmp_path / name / "reproduction.json").read_text("utf-8")) for name in ("few", "enough")}
    of_samples = {
        name: [
            claim
            for claim in each["claims"]
            if claim["source"].split(", ")[1] in ("Lemma 5.3", "Theorem 5.4", "Section 5.1")
            and "infinitely many samples" not in claim["claim"]
        ]
        for name, each in found.items()
    }
    assert len(of_samples["few"]) == len(of_samples["enough"]) == 7
    assert {claim["holds"] for claim in of_samples["few"]} == {None}
    assert not [claim for claim in of_samples["few"] if "contradicted" in claim["claim"]]
    assert False in {claim["holds"] for claim in of_samples["enough"]}
    (infinite,) = (claim for claim in found["few"]["claims"] if "infinitely many samples" in claim["claim"])
    assert infinite["holds"] is False  # at the limit, whatever m is
    (note,) = (note for note in found["few"]["notes"] if note.startswith("Measured with m = 5 samples"))
    assert "fewer than d = 6; Lemma 5.3 and Theorem 5.4 ask for m = Ω(q)" in note
    assert note.endswith("shown and not judged.")
    assert not [note for note in found["enough"]["notes"] if note.startswith("Measured with")]


@pytest.mark.parametrize(("samples", "verdict"), [(2, None), (3, False)])
def test_the_largest_step_is_not_judged_with_fewer_samples_than_the_lemma_asks_for(
    samples: int, verdict: bool | None, tmp_path: Path
) -> None:
    assert _run("rolora-step-size", tmp_path, f"samples=[{samples}]") == 0
    (claim,) = (claim for claim in _claims(tmp_path) if f"m = {samples} (share" in claim["claim"])
    assert claim["holds"] is verdict
    notes = json.loads((tmp_path / "reproduction.json").read_text("utf-8"))["notes"]
    assert any("Lemma 5.3 asks for m = Ω(q)" in note for note in notes) is (verdict is None)


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("rolora-theory", "samples=0", "samples m is 0"),
        ("rolora-theory", "dimension=1", "dimension d is 1"),
        ("rolora-theory", "clients=0", "clients N is 0"),
        ("rolora-theory", "delta0=1", "delta0 is 1"),
        ("rolora-theory", "l_max=0.5", "l_max is 0.5"),
        ("rolora-theory", "step=-1", "step size eta is -1"),
        ("rolora-step-size", "delta0=0", "delta0 is 0; it must lie above 1e-12 (rounding) and below 1"),
        ("rolora-step-size", "delta0=1", "delta0 is 1; it must lie above 1e-12 (rounding) and below 1"),
        ("rolora-step-size", "deltas=[1.0]", "deltas holds 1; it must lie above 1e-12 (rounding) and below 1"),
        ("rolora-step-size", "shares=[0.0]", "it must be positive"),
        ("rolora-step-size", "samples=[0]", "samples m is 0"),
        ("rolora-heterogeneous", "gammas=[-1.0]", "gamma is -1"),
        ("rolora-heterogeneous", "clients=1", "single client"),
        ("rolora-heterogeneous", "nothing=1", "unknown setting 'nothing'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    name: str, setting: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(name, tmp_path / "out", setting) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("delta0", [0.8, 1e-3, 1e-4])
def test_a_small_angle_loses_digits_and_not_the_identity(delta0: float) -> None:
    """Alike clients, γ = 0: the loss is ‖b*‖²δ0², of differences of products that agree but for δ0."""
    outcome = Outcome()
    settings = FFASettings(clients=10, gamma=0.0, delta0=delta0)
    judge_frozen_clients_that_differ(outcome, settings, range(40), torch.device("cpu"))
    (claim,) = outcome.claims
    assert claim.holds is True
    assert claim.high < 1e-15 / delta0


@pytest.mark.parametrize(("rounds", "judged"), [(999, False), (1000, True)])
def test_few_rounds_say_nothing_of_the_long_run(rounds: int, judged: bool, tmp_path: Path) -> None:
    assert _run("rolora-step-size", tmp_path, f"long_rounds={rounds}") == 0
    fall = [claim for claim in _claims(tmp_path) if "exponentially fast" in claim["claim"]]
    swing = [claim for claim in _claims(tmp_path) if "swings" in claim["claim"]]
    notes = json.loads((tmp_path / "reproduction.json").read_text("utf-8"))["notes"]
    assert any("is not judged from 999 rounds" in note for note in notes) == (not judged)
    if judged:
        assert fall[0]["measured"] == pytest.approx(1, abs=0.01)  # as 1/√(8t), which is not exponential
        assert (fall[0]["holds"], swing[0]["holds"]) == (False, True)
    else:
        assert not fall
        assert not swing


@pytest.mark.parametrize(("norm", "l_max", "larger"), [(0.15, 0.15, False), (0.15, 0.3, True)])
def test_a_limit_below_one_by_rounding_is_none(norm: float, l_max: float, larger: bool, tmp_path: Path) -> None:
    assert 1 / 0.15**2 * 0.15**2 < 1  # in floating point
    assert _run("rolora-theory", tmp_path, f"norm={norm}", f"l_max={l_max}") == 0
    notes = json.loads((tmp_path / "reproduction.json").read_text("utf-8"))["notes"]
    assert any("L_max is larger than ‖b*‖" in note for note in notes) == larger
