"""The experiments on feature learning, by their commands."""

import json
import math

import pytest

from commonground.cli import main
from commonground.errors import ConfigError
from commonground.papers.local_steps.features import FeatureSettings
from commonground.papers.local_steps.theorem3 import Theorem3Settings
from commonground.theory import features as fl

TINY: dict[str, object] = {
    "d": 60,
    "K": 3,
    "K0": 2,
    "N": 3,
    "n": 2,
    "m": 6,
    "rounds": 60,
    "local_steps": 40,
    "directions": 20,
    "points": 5,
}
OWN: dict[str, dict[str, object]] = {
    "theorem1": {"control_gaps": "[0.5]", "control_alphas": "[1.0]", "check_rounds": 5},
    "theorem3": {"control_rhos": "[0.9]"},
    "fig2": {},
    "fig3": {},
}


def command(name, out, settings, seeds=3):
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return ["reproduce", f"local-steps-{name}", "--seeds", str(seeds), "--quiet", "--out", str(out), *sets]


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("K0", [2, 3])
def test_experiments_run_small(name, K0, tmp_path):
    assert main(command(name, tmp_path / "r", {**TINY, **OWN[name], "K0": K0})) == 0
    claims = json.loads((tmp_path / "r" / "results.json").read_text())
    assert len(claims) >= 3
    for claim in claims:
        assert set(claim) == {"claim", "source", "paper", "measured", "low", "high", "seeds", "holds"}
        assert all(math.isfinite(claim[key]) for key in ("measured", "low", "high"))
    figures = {path.suffix for path in (tmp_path / "r" / "figures").iterdir()}
    assert figures >= {".png", ".csv"}
    settings = json.loads((tmp_path / "r" / "reproduction.json").read_text())["settings"]
    assert settings["d"] == 60


def test_at_the_edge_of_the_setting_the_theorem_has_to_stand_and_beyond_it_to_fail(tmp_path):
    controls = {"control_gaps": "[]", "control_alphas": "[]", "control_starts": "[]", "control_betas": "[1.0, 1.5]"}
    assert main(command("theorem1", tmp_path / "r", {**TINY, **controls, "check_rounds": 0})) == 0
    texts = [claim["claim"] for claim in json.loads((tmp_path / "r" / "results.json").read_text())]
    edge, beyond = ([text for text in texts if f"K0β³/(α³/2) = {share}:" in text] for share in ("1", "1.5"))
    assert [text.startswith("edge of the setting") and "not so" not in text for text in edge] == [True] * 2
    assert [text.startswith("control") and "not so" in text for text in beyond] == [True] * 2


def test_one_width_shows_no_fall_with_it(tmp_path):
    assert main(command("fig3", tmp_path / "r", {**TINY, "growth": 1})) == 0
    found = json.loads((tmp_path / "r" / "reproduction.json").read_text())
    assert not [claim for claim in found["claims"] if "exponent of d" in claim["claim"]]
    assert [note for note in found["notes"] if note.startswith("The one dimension d = 60 shows no fall with d")]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("theorem1", {"K0": 7}, "K0 is 7; it must lie in [0, 6]"),
        ("theorem1", {"rho": 0.5, "gap": 0.1}, "rho = 0.5 and gap = 0.1 are both set"),
        ("theorem1", {"gap": 3}, "gap is 3"),
        ("theorem3", {"rho": -0.1}, "rho is -0.1"),
        ("theorem3", {"N": 9}, "N is 9, no multiple of K = 6"),
        ("fig2", {"d": 6}, "d is 6; it must be at least 7"),
        ("fig3", {"n": 0}, "'n' is 0"),
        ("fig3", {"sigma_0": 1e-12}, "set rounds or a larger eta"),
        ("fig3", {"eta": 0}, "eta is 0"),
        ("theorem1", {"gap": 2, "eta": 50, "rounds": 500}, "gradient descent with global updates diverges"),
        ("theorem1", {"alpha": 0}, "alpha is 0; it must be positive"),
    ],
)
def test_refusals_leave_nothing(name, settings, words, tmp_path, capsys):
    assert main(command(name, tmp_path / "r", settings)) != 0
    message = capsys.readouterr().err
    assert words in message
    assert not (tmp_path / "r").exists()


def test_defaults_are_parameters_1_and_2():
    model = FeatureSettings(d=400, K=8, K0=4, N=8).model()
    assert model.gap == pytest.approx(8 / 400)
    assert 2 * 4 * model.beta**3 == pytest.approx(model.alpha**3 / 2)
    assert model.sigma_xi == pytest.approx(1.5 * 400**-0.51)
    weak = Theorem3Settings(d=400)
    assert weak.model().rho == pytest.approx(1 / 400)
    assert weak.stated_rounds(weak.model()) == math.floor(1 / (1.3**3 * weak.model().sigma_0))
    with pytest.raises(ConfigError, match="K0 is 0"):
        FeatureSettings.model_construct(**{**FeatureSettings().model_dump(), "K0": 0}).model()


def test_rounds_scale_with_the_step():
    settings = FeatureSettings(eta=0.5)
    model = settings.model()
    assert settings.global_rounds(model) == math.ceil(1.5 * fl.memorisation_rounds(model, 0.5))
    assert FeatureSettings(rounds=7).global_rounds(model) == 7
