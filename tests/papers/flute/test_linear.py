"""FLUTE's experiments of theory from the command line, at tiny sizes, and what they refuse."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from commonground import cli
from commonground.papers.flute.fig4 import PenaltySettings
from commonground.papers.flute.linear import effective_step
from commonground.theory.flute import (
    Convention,
    asymptotic_rate,
    best_rank_k,
    fedrep,
    flute,
    models,
    models_with_singular_values,
    population_problem,
    random_start,
    sample_problem,
)
from commonground.theory.subspace import orthonormal

TINY = {
    "flute-fig1": ["d=5", "ks=[1, 2]", "clients=[6]", "samples=[8]", "rounds=30", "horizons=[10]"],
    "flute-fig3": ["d=5", "ks=[2]", "clients=[6, 8]", "samples=[4]", "rounds=20", "every=10"],
    "flute-fig4": ["d=5", "k=2", "clients=6", "samples=[4]", "rounds=60", "long_rounds=90", "diverging=[40.0]"],
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
        ("flute-fig1", "ks=[11]", "k is 11, with M = 15; it must be at most min(d, M) = min(10, 15)"),
        ("flute-fig4", "M=1", "k is 6, with M = 1; it must be at most min(d, M) = min(10, 1)"),
        ("flute-theorem5.5", "M=1", "k is 2, with M = 1; it must be at most min(d, M) = min(10, 1) (--set k=…)"),
        ("flute-theorem5.5", "practical_ks=11", "practical_ks holds 11, with M = 15; it must"),
        ("flute-theorem5.5", "practical_ks=0", "practical_ks is 0"),
        ("flute-fig1", "gamma2=0.0", "gamma2 is 0"),
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


def reproduced(name: str, out: Path, *settings: str, seed: int = 0, tiny: bool = True) -> dict[str, Any]:
    options = [part for setting in (*(TINY[name] if tiny else ()), *settings) for part in ("--set", setting)]
    asked = ["--seed", str(seed), "--seeds", "3", "--out", str(out), "--quiet"]
    assert cli.main(["reproduce", name, *options, *asked]) == 0
    whole: dict[str, Any] = json.loads((out / "reproduction.json").read_text())
    return whole


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("flute-fig1", []),
        ("flute-fig1", ["d=30", "clients=40", "samples=3"]),
        ("flute-fig1", ["gamma1=2", "gamma2=1", "alpha=1"]),
        ("flute-fig3", ["sum_or_mean=mean", "loss=half-square"]),
        ("flute-fig4", ["samples=5"]),
    ],
)
def test_the_step_that_is_advised_does(
    name: str, others: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [part for setting in (*TINY[name], *others) for part in ("--set", setting)]
    command = ["reproduce", name, *options, "--seeds", "2", "--quiet", "--out"]
    assert cli.main([*command, str(tmp_path / "large"), "--set", "step=1000"]) == 2
    advised = capsys.readouterr().err.split("such as ")[1].strip()
    assert 0 < float(advised.removeprefix("step=")) < 1
    assert cli.main([*command, str(tmp_path / "advised"), "--set", advised]) == 0


def test_a_diverging_seed_of_figure_4_is_counted(tmp_path: Path) -> None:
    # With seed 98 and gradients of the square FLUTE diverges for γ1 = 2γ2 and N = 8; it used to end the experiment.
    sizes = ("d=10", "k=6", "clients=10", "samples=8", "rounds=500", "long_rounds=500", "diverging=4.0", "every=100")
    paper = (*sizes, "loss=square")
    found = reproduced("flute-fig4", tmp_path / "out", *paper, "generators=spectrum", seed=97)
    rows = found["tables"]["error after the last round"]
    assert [(row["γ1/γ2"], row["seeds that diverge"]) for row in rows] == [
        *((2.0, 1), (1.0, 0), (0.6667, 0)),
        *((2.0, 1), (1.0, 0), (0.6667, 0)),  # with γ2 fixed: at a ratio of 2 the same penalties
    ]
    assert {row["fixed"] for row in rows} == {"γ1 = 0.25", "γ2 = 0.125"}
    assert any("1 with γ1 = 2γ2, N = 8" in note for note in found["notes"])
    assert any("unbounded below" in note for note in found["notes"])


@pytest.mark.parametrize(("name", "sizes"), [("flute-fig3", ("M=15", "N=12")), ("flute-fig4", ("N=8",))])
def test_other_sizes_are_not_called_the_papers(name: str, sizes: tuple[str, ...], tmp_path: Path) -> None:
    few = ("k=[2]", "rounds=500", "every=500") if name == "flute-fig3" else ("rounds=5", "long_rounds=5", "every=5")
    found = reproduced(name, tmp_path / "other", *few, *sizes, tiny=False)
    assert not any("own sizes" in note for note in found["notes"])


def test_the_papers_sizes_are_called_so(tmp_path: Path) -> None:
    few = ("rounds=5", "long_rounds=5", "every=5")
    found = reproduced("flute-fig4", tmp_path, *few, tiny=False)
    assert any(note.startswith("Both scales are the paper's own sizes. The paper") for note in found["notes"])


def test_what_diverges_later_is_counted_later(tmp_path: Path) -> None:
    found = reproduced("flute-fig4", tmp_path / "out", "rounds=5", "long_rounds=80", "fixed=gamma1", "every=5")
    row = found["tables"]["where γ1 > 2γ2"][0]
    assert row["diverged within 5"] == 0 < row["diverged within 80"]
    assert row["with an objective unbounded below"] == 3
    shares = {c["claim"].split("within ")[1]: c["measured"] for c in found["claims"] if "diverges" in c["claim"]}
    assert shares["5 rounds, at least half"] == 0.0 < shares["80 rounds, at least half"]


def test_figure_4_diverges_with_the_gradients_of_the_appendix(tmp_path: Path) -> None:
    """Beside gradients half as large the penalty weighs twice as much; N = 11 is shown and not claimed."""
    paper = (
        "d=10",
        "k=6",
        "clients=10",
        "samples=[8,11]",
        "rounds=500",
        "long_rounds=500",
        "diverging=2.5",
        "every=100",
    )
    shares = {}
    for loss in ("half-square", "square"):
        more = (f"loss={loss}", "generators=spectrum", "fixed=gamma1")
        found = reproduced("flute-fig4", tmp_path / loss, *paper, *more, seed=3)
        claims = {claim["claim"]: claim["measured"] for claim in found["claims"]}
        shares[loss] = next(value for text, value in claims.items() if "diverges" in text)
        assert any("N = 8" in text for text in claims)
        assert not any("N = 11" in text for text in claims)
        assert {row["N"] for row in found["tables"]["error after the last round"]} == {8, 11}
    assert (shares["half-square"], shares["square"]) == (1.0, 0.0)


def test_the_penalties_of_figure_1_are_settings(tmp_path: Path) -> None:
    """What the figure does not name decides by how much FLUTE is ahead."""
    gains = []
    for gamma2 in (0.125, 0.25):
        found = reproduced("flute-fig1", tmp_path / str(gamma2), f"gamma2={gamma2}")
        assert any(f"γ1 = 0.25, γ2 = {gamma2}, " in note for note in found["notes"])
        gains.append([claim["measured"] for claim in found["claims"]])
    assert gains[0] != gains[1]


@pytest.mark.parametrize(("loss", "weight"), [("square", 1), ("half-square", 2)])
def test_what_figure_4_says_of_its_objective_is_of_its_loss(
    loss: Literal["square", "half-square"], weight: int, tmp_path: Path
) -> None:
    """Where the data's gradients are half as large, the penalty weighs twice as much: in the limit that the note names,
    and in how little a client's samples may curve its loss before the objective is unbounded below.
    """
    sizes = ("generators=gaussian", "fixed=gamma1", "rounds=5", "long_rounds=5", "every=5", "diverging=2.5")
    found = reproduced("flute-fig4", tmp_path, *sizes, "samples=15", f"loss={loss}", tiny=False)
    note = next(note for note in found["notes"] if "the limit is" in note)
    phi = models("gaussian", range(3), 10, 10)
    run = flute(
        population_problem(range(3), phi), 6, 20_000, 0.03,
        random_start(population_problem(range(3), phi), 6, 0.01),
        gamma1=0.25, gamma2=0.25, convention=Convention(loss=loss), every=20_000,
    )  # fmt: skip
    shrunk = torch.linalg.matrix_norm(run.B @ run.W) / torch.linalg.matrix_norm(best_rank_k(phi, 6))
    np.testing.assert_allclose(shrunk, 1 / (1 + weight * (2 * 0.25 - 0.25)), rtol=1e-6)
    assert f"Φ_k/(1 + {'' if weight == 1 else weight}(2γ2 − γ1))" in note
    covariance = sample_problem(range(3), phi, 15).covariance
    assert covariance is not None
    softest = np.linalg.eigvalsh(covariance.numpy()).min((1, 2))
    row = found["tables"]["where γ1 > 2γ2"][0]
    assert row["with an objective unbounded below"] == (softest < weight * (0.25 - 2 * 0.25 / 2.5)).sum()
    assert row["with an objective unbounded below"] > 0


def test_penalties_of_a_ratio_keep_the_fixed_one() -> None:
    settings = PenaltySettings()
    assert settings.penalties("gamma1", 4.0) == (0.25, 0.0625)
    assert settings.penalties("gamma2", 4.0) == (0.5, 0.125)


@pytest.mark.parametrize("convention", [Convention(), Convention("mean"), Convention("sum", "half-square")])
def test_at_the_effective_step_fedrep_contracts_as_flute_does(convention: Convention) -> None:
    seeds, k, step = [3], 2, 0.02 if convention.clients == "sum" else 0.1
    phi = models_with_singular_values(seeds, 5, 6, [3.0, 2.5, 1.0, 0.5, 0.2])
    problem = population_problem(seeds, phi)
    rate = float(asymptotic_rate(torch.linalg.svdvals(phi), k, step, 6, convention, dimension=5))
    rounds = round(14 / -math.log(rate))  # e^-14, far from rounding
    B = orthonormal(best_rank_k(phi, k)[:, :, :k] + 0.01 * phi[:, :, :k])
    path = fedrep(problem, k, 2 * rounds, step * effective_step(phi, k, convention), B)
    late = path.to_best[0, rounds : rounds + 200 if rounds > 200 else None]
    assert float((late[-1] / late[0]) ** (1 / (len(late) - 1))) == pytest.approx(rate, abs=2e-4)


def test_figures_1_and_3_say_how_many_hold_and_what_one_step_means(tmp_path: Path) -> None:
    sizes = ("d=5", "n=7", "k=2", "N=4", "eta=0.02", "rounds=20", "every=10")
    found = reproduced("flute-fig1", tmp_path / "out", *sizes, tiny=False)
    assert found["settings"]["clients"] == [7]
    assert found["settings"]["step"] == 0.02
    assert any(
        "Settings in which FLUTE outperforms FedRep after 20 rounds: 1 of 1 " in note
        or "after 20 rounds: 0 of 1 " in note
        for note in found["notes"]
    )
    curve = found["curves"]["error by round, M = 7, N = 4, k = 2"]
    assert "FedRep at FLUTE's effective step" in curve["lines"]
    assert "factor 2" in curve["reads"]
    assert any("with FLUTE's effective step" in claim["claim"] for claim in found["claims"])


def test_claims_after_a_round_are_of_that_round(tmp_path: Path) -> None:
    """Whatever the points of a curve are: 7 is no multiple of 5."""
    sizes = ("d=5", "ks=[2]", "clients=[6]", "samples=[4]", "rounds=20", "horizons=[1, 7]")
    coarse, fine = (
        {
            one["claim"]: one["measured"]
            for one in reproduced("flute-fig3", tmp_path / e, *sizes, f"every={e}", tiny=False)["claims"]
        }
        for e in ("5", "1")
    )
    after = [claim for claim in coarse if "after 7 rounds" in claim or "after 1 rounds" in claim]
    assert after
    for claim in after:
        assert coarse[claim] == fine[claim]


@pytest.mark.parametrize(
    ("settings", "beyond"),
    [
        (("rounds=20", "every=5", "horizons=[5]"), 5),
        (("rounds=20", "every=5", "horizons=[7]"), 1),
        (("rounds=3", "every=5", "horizons=[]"), 3),
    ],
)
def test_a_method_that_never_arrives_counts_what_the_note_says(
    settings: tuple[str, ...], beyond: int, tmp_path: Path
) -> None:
    sizes = ("d=5", "ks=[2]", "clients=[6]", "samples=[4]", *settings)
    found = reproduced("flute-fig3", tmp_path, *sizes, tiny=False)
    assert any(f"counts the last round plus {beyond})" in note for note in found["notes"])
    with (tmp_path / "figures" / "error-by-round-m-6-n-4-k-2.csv").open(encoding="utf-8", newline="") as file:
        points = sorted({float(row["round"]) for row in csv.DictReader(file)})
    assert points[1] - points[0] == beyond  # the step between two that are recorded, which is what counts
