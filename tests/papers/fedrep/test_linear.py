"""The linear figures of FedRep from the command line, at tiny settings; their judgements."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from commonground.cli import main
from commonground.errors import DivergenceError
from commonground.papers.fedrep import fig7
from commonground.papers.fedrep.fig3 import Fig3Settings
from commonground.papers.fedrep.fig7 import Fig7Settings
from commonground.papers.fedrep.linear import LinearCase, choose_step, first_round, show_rounds
from commonground.theory.linear import Alternation, Trajectory

TINY = {
    "fedrep-fig1": ["m=[2,4,8]", "n=20", "d=6", "rounds=15"],
    "fedrep-fig3": ["n=[20,30]", "rounds=12", "tuning_seeds=2", "steps=[0.2]", "head_step_grid=[0.1]"],
    "fedrep-fig4": ["n=20", "d=6", "m=5", "new_clients=6", "rounds=15"],
    "fedrep-fig7": ["n=[10,20]", "m=6", "rounds=12", "tuning_seeds=2", "steps=[0.2]", "head_step_grid=[0.1]"],
    "fedrep-theorem1": ["n=20", "m=[2,6]", "r=[1.0,0.25]", "rounds=8"],
}


def reproduce(name: str, out: Path, *settings: str, seed: int = 0) -> int:
    assignments = [part for each in settings for part in ("--set", each)]
    asked = ["--seed", str(seed), "--seeds", "3", "--out", str(out), "--quiet"]
    return main(["reproduce", name, *asked, *assignments])


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


def test_figure_1_with_too_few_samples_for_any_method(tmp_path: Path) -> None:
    """At m ≤ k FedRep stays where it starts, and there is no m of which the paper says that it is ahead."""
    assert reproduce("fedrep-fig1", tmp_path, "m=[1,2]", "n=20", "d=6", "rounds=3") == 0
    claims = json.loads((tmp_path / "results.json").read_text())
    assert not [claim for claim in claims if "FedRep is below Local Only" in claim["claim"]]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fedrep-fig3", ["n=5", "r=0.1"], "at least 1 client must take part"),
        ("fedrep-fig1", ["k=30"], "k is 30; it must not exceed min(d, n)"),
        ("fedrep-fig4", ["k=6", "d=6", "n=20"], "k and d are both 6: every representation is then the whole space"),
        ("fedrep-theorem1", ["k=6", "d=6", "n=20"], "k and d are both 6: every representation is then the whole space"),
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


def test_figure_3_shows_both_forms_of_gd_gd_and_the_fall_from_afar(tmp_path: Path) -> None:
    assert reproduce("fedrep-fig3", tmp_path, *TINY["fedrep-fig3"]) == 0
    found = json.loads((tmp_path / "reproduction.json").read_text())
    names = ["FedRep", "GD-GD", "10GD-GD", "GD-GD without QR", "10GD-GD without QR"]
    for n in (20, 30):
        near, far = (found["curves"][f"distance to the true representation, n = {n}{w}"]["lines"] for w in WHERE)
        assert list(near) == list(far) == names
        starts = [{line["mean"][0] for line in lines.values()} for lines in (near, far)]
        assert len(starts[0]) == len(starts[1]) == 1  # all methods from the same one
        assert min(starts[1]) > 1.5 * max(starts[0])
    assert near["GD-GD"]["mean"] != near["GD-GD without QR"]["mean"]
    (tmp_path / "plain").mkdir()
    assert (
        reproduce("fedrep-fig3", tmp_path / "plain", *TINY["fedrep-fig3"], "without_qr=false", "far_start=false") == 0
    )
    plain = json.loads((tmp_path / "plain" / "reproduction.json").read_text())
    assert [list(curve["lines"]) for curve in plain["curves"].values()] == [names[:3]] * 2


WHERE = ("", ", from a random start")


def test_fedsgd_is_also_shown_from_a_random_start(tmp_path: Path) -> None:
    assert reproduce("fedrep-fig4", tmp_path, *TINY["fedrep-fig4"]) == 0
    found = json.loads((tmp_path / "reproduction.json").read_text())
    distances = {row["method"]: row["start"] for row in found["tables"]["distance of the representation to B*"]}
    assert distances["FedSGD"] == distances["FedRep"] < distances["FedSGD from a random start"]
    curve = found["curves"]["error of new clients, mean"]
    assert "FedSGD from a random start" in curve["lines"]
    assert "flatters" in curve["reads"]


def test_the_seeds_that_choose_steps_do_not_change_with_those_judged(tmp_path: Path) -> None:
    settings = [*TINY["fedrep-fig7"][:4], "m=6", "steps=[0.1,0.3]", "head_step_grid=[0.05,0.2]"]
    for seed in (0, 50):
        assert reproduce("fedrep-fig7", tmp_path / str(seed), *settings, seed=seed) == 0
    rows = [
        json.loads((tmp_path / seed / "reproduction.json").read_text())["tables"][
            "starts, step sizes and where they lead"
        ]
        for seed in ("0", "50")
    ]
    assert [(row["method"], row["step"]) for row in rows[0]] == [(row["method"], row["step"]) for row in rows[1]]


def test_a_step_that_is_too_large_names_the_setting_that_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("fedrep-fig3", tmp_path / "a", "step=60", "head_step=0.1", "n=20", "rounds=30") == 2
    assert "use a smaller step size, such as step=0.125" in " ".join(capsys.readouterr().err.split())
    assert reproduce("fedrep-fig7", tmp_path / "b", "step=0.2", "head_step=9", "n=20", "m=5") == 2
    assert "such as head_step=0." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "too_large", "others"),
    [
        ("fedrep-fig1", "step=1000", ["n=20", "d=6", "m=8"]),  # FedSGD's iterate leaves every range
        ("fedrep-fig1", "step=3", ["n=20", "d=6", "m=8"]),
        ("fedrep-fig3", "step=1000", ["n=[20,30]", "tuning_seeds=2"]),
        ("fedrep-fig3", "steps=1000", ["n=[20,30]", "tuning_seeds=2", "head_step_grid=0.1"]),
        ("fedrep-fig4", "step=1000", ["n=20", "d=6", "m=5", "new_clients=6"]),
        ("fedrep-fig7", "step=1000", ["n=[10,20]", "m=6"]),
        ("fedrep-fig7", "step=1000", ["n=[10,20]", "m=1"]),  # GD-GD's heads
        ("fedrep-fig7", "head_step=9", ["n=[10,20]", "m=6", "step=0.2"]),
        ("fedrep-fig7", "head_step_grid=9", ["n=[10,20]", "m=6", "tuning_seeds=2", "steps=0.2"]),
        ("fedrep-fig7", "head_step=9", ["n=[10,20]", "m=6", "tuning_seeds=2", "steps=0.2"]),
        ("fedrep-theorem1", "step=300", ["n=20", "m=6", "r=1.0"]),
    ],
)
def test_the_step_that_is_advised_does(
    name: str, too_large: str, others: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(name, tmp_path / "large", *others, "rounds=30", too_large) == 2
    advised = capsys.readouterr().err.split("such as ")[1].strip()
    assert advised.split("=")[0] == too_large.split("=")[0]
    assert reproduce(name, tmp_path / "advised", *others, "rounds=30", advised) == 0


def test_a_smaller_step_is_not_advised_where_samples_are_too_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("fedrep-fig3", tmp_path, "m=1", "n=20", "tuning_seeds=8") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "take m > k" in said
    assert "such as" not in said


def test_figure_7_counts_the_seeds_that_a_gaussian_start_drives_away(tmp_path: Path) -> None:
    settings = ["n=[20,40]", "m=10", "tuning_seeds=2", "steps=[1.0]", "head_step_grid=[0.25]", "rounds=60"]
    found = {}
    for start in ("gaussian", "random", "false"):
        assert reproduce("fedrep-fig7", tmp_path / start, *settings, f"random_start={start}") == 0
        found[start] = json.loads((tmp_path / start / "reproduction.json").read_text())
    table = "starts, step sizes and where they lead"
    rows = {
        start: {(r["n"], r["method"], r["start"]): r for r in each["tables"][table]} for start, each in found.items()
    }
    assert {start for _, _, start in rows["false"]} == {"projected-gradient"}
    for start, diverging in (("gaussian", "3 of 3"), ("random", "0 of 3")):
        assert rows[start][40, "GD-GD without QR", start]["seeds that diverge"] == diverging
        assert rows[start][40, "FedRep", start]["seeds that diverge"] == "0 of 3"
        assert rows[start][40, "FedRep", start]["seeds within 1.5 × the other start's"] == "3 of 3"
    assert all("with 3 seeds for its 10" in each["notes"][0] for each in found.values())
    claims = {claim["claim"]: claim for claim in found["gaussian"]["claims"]}
    far = {text: claim for text, claim in claims.items() if text.startswith("From a Gaussian start (B and heads stan")}
    assert len(far) == 6
    (without,) = (claim for text, claim in far.items() if "GD-GD without QR does" in text and "n = 40" in text)
    assert without["measured"] == 1.0
    assert without["source"] == "Collins et al. 2021, Figure 7 and Appendix A.1"
    assert without["paper"] == "often not converging"
    # GD-GD with QR is no method of the paper.
    for text, claim in claims.items():
        assert (claim["source"] == "ours, after Collins et al. 2021, Figure 7") is (
            "GD-GD " in text.replace(WITHOUT, "")
        )
    assert not [text for text in (c["claim"] for c in found["false"]["claims"]) if text.startswith("From")]


WITHOUT = "GD-GD without QR"


def test_a_seed_that_overflows_from_both_starts_has_not_got_as_far() -> None:
    run, near = (
        Trajectory(values, values, values, torch.empty(3, 1, 1), torch.empty(3, 1, 1), torch.tensor(diverged))
        for values, diverged in (
            (torch.tensor([[1.0], [1e12], [1e12]]), [-1, 4, 4]),
            (torch.tensor([[1.0], [1.0], [1e12]]), [-1, -1, 2]),
        )
    )
    row = fig7._row(LinearCase(Fig7Settings(), 20, 5), Alternation(1, 1.0, 0.25), "gaussian", run, near)
    assert row["_arrived"] == [True, False, False]
    assert row["seeds that diverge"] == "2 of 3"


def test_figure_3_with_tied_steps(tmp_path: Path) -> None:
    settings = ["n=[20,40]", "rounds=20", "tuning_seeds=3", "steps=[0.1,0.2]", "head_step_grid=[0.05,0.15]"]
    found = {}
    for tied in ("false", "true"):
        assert reproduce("fedrep-fig3", tmp_path / tied, *settings, f"tied={tied}") == 0
        found[tied] = json.loads((tmp_path / tied / "reproduction.json").read_text())
    # By default the comparison from a random start is tied, and the other is not.
    for tied, table in (("false", "tied step sizes"), ("true", "step sizes"), ("true", "tied step sizes")):
        rows = {(row["n"], row["method"]): row for row in found[tied]["tables"][table]}
        for n in (20, 40):
            for form in ("", " without QR"):
                single, ten = rows[n, f"GD-GD{form}"], rows[n, f"10GD-GD{form}"]
                assert single["step"] in (0.1, 0.2)
                assert single["head step"] == f"{single['step']:g}"
                assert ten["step"] == single["step"]
                assert ten["head step"] in ("0.05", "0.15")
    assert {row["head step"] for row in found["false"]["tables"]["step sizes"]} <= {"exact", "0.05", "0.15"}
    leads = {(row["n"], row["method"]): row for row in found["false"]["tables"]["with tied steps, from a random start"]}
    assert leads[20, "FedRep"]["lead of FedRep (log10)"] == 0
    claims = [
        claim for claim in found["false"]["claims"] if "one step for GD-GD's heads and representation" in claim["claim"]
    ]
    (grows,) = (claim for claim in claims if "over 10GD-GD without QR grows" in claim["claim"])
    lead = [leads[n, "10GD-GD without QR"]["lead of FedRep (log10)"] for n in (20, 40)]
    assert grows["measured"] == pytest.approx(lead[1] - lead[0])
    assert grows["source"] == "Collins et al. 2021, Figure 3"
    (ours,) = (claim for claim in claims if "over 10GD-GD grows" in claim["claim"])
    assert (ours["source"], ours["paper"]) == ("ours, after Collins et al. 2021, Figure 3", None)


def test_steps_from_afar_are_those_with_which_the_fewest_seeds_go_astray() -> None:
    case = LinearCase(Fig3Settings(), 20, 5)
    kind = Alternation(1, 1.0, orthonormalise=False)
    grid, seeds, window = (0.25, 1.0, 0.125), range(8), (10, 50)
    with pytest.raises(DivergenceError, match="GD-GD without QR diverges at every step size"):
        choose_step(case, kind, (1.0, 4.0), (None,), seeds, window, lambda run: run.distance)
    ranked = choose_step(case, kind, grid, (None,), seeds, window, lambda run: run.distance, far=True)
    assert all(method.head_step is None for method in ranked)
    drawn = case.draw(seeds, "random")
    away = [int(case.run(drawn, method, 50, on_divergence="record").went_away.sum()) for method in ranked]
    assert len(away) == 3
    assert away == sorted(away)
    assert away[0] < away[-1] == 8
