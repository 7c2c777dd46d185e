"""Settings that no run can follow are refused before it starts, each in one sentence with what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commonground import train
from commonground.algorithms import make_algorithm, registry
from commonground.algorithms.fedprox import FedProx
from commonground.algorithms.local_sgd import LocalSGD
from commonground.cli import main
from commonground.config import RunConfig
from commonground.errors import CommonGroundError, ConfigError, DataError, UpdateError
from tests.helpers import made_data, own

HUGE = 99999999999999999999
OFTEN = r"counts go up to 1,000,000,000"
FLOAT32 = r"0 or 1\.2e-38 to 3\.4e\+38"

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"lr": 1e39}, FLOAT32),
    ({"lr": 1e-45}, FLOAT32),
    ({"lr": 1e400}, "finite"),
    ({"weight_decay": 1e300}, FLOAT32),
    ({"server_lr": 1e39}, FLOAT32),
    ({"feature_noise": 1e60}, FLOAT32),
    ({"momentum": 1.0}, "less than 1"),
    ({"momentum": -0.1}, "at least|greater"),
    ({"momentum": float("nan")}, "input"),
    ({"local_epochs": HUGE}, OFTEN),
    ({"local_steps": HUGE}, OFTEN),
    ({"finetune_epochs": HUGE}, OFTEN),
    ({"rounds": 10**18}, OFTEN),
    ({"rounds": 10**5000}, "thousands of digits"),
    ({"batch_size": 10**30}, OFTEN),
    ({"clients": 10**30}, OFTEN),
    ({"eval_every": 10**30}, OFTEN),
    ({"workers": 10**30}, OFTEN),
]


@pytest.mark.parametrize(("values", "match"), REFUSED, ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
def test_settings_out_of_range(values: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{next(iter(values))}' is .*{match}") as caught:
        RunConfig.make(values)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_limits_themselves_are_allowed() -> None:
    config = RunConfig.make({"lr": 3.4028234e38, "weight_decay": 0.0, "rounds": 10**9, "batch_size": 10**9})
    assert config.rounds == 10**9
    assert RunConfig.make({"lr": 1.2e-38}).lr == 1.2e-38


@pytest.mark.parametrize("name", sorted(registry))
def test_no_method_takes_what_float32_cannot_hold(name: str) -> None:
    """Whatever a setting is, a number beyond all bounds is one sentence, not a hang or an infinite loss."""
    for option, default in registry[name].options().items():
        # As a real number 10^20 is within float32; some settings are real numbers without a default.
        real = isinstance(default, float) or option in ("alpha", "step_bound")
        for value in (float("nan"), float("inf"), 1e39, 1e-45, *(() if real else (HUGE, -HUGE))):
            with pytest.raises(ConfigError, match=option) as caught:
                make_algorithm(name, {option: value})
            assert "\n" not in str(caught.value)


def test_settings_of_an_object_are_checked_as_well() -> None:
    with pytest.raises(ConfigError, match=f"FedProx: 'mu' is 1e\\+39: .*{FLOAT32}"):
        train(FedProx(mu=1e39), made_data(), rounds=1)
    with pytest.raises(ConfigError, match="'halvings' is nan"):
        train(LocalSGD(halvings=(0.5, float("nan"))), made_data(), rounds=1)


@pytest.mark.parametrize(
    ("method", "settings", "match"),
    [
        ("fedavg", {"local_epochs": 10**9}, r"'local_epochs' is 1,000,000,000, .* up to 33,554,432 are possible"),
        ("fedavg", {"local_steps": 10**9}, r"'local_steps' is .*possible"),
        ("fedavg", {"finetune_epochs": 10**9}, r"'finetune_epochs' is .*possible"),
        (
            "fedrep",
            {"options": {"head_epochs": 10**9}},
            r"1,000,000,000, and so many epochs .*possible",
        ),
        ("perfedavg", {"options": {"adapt_steps": 10**9}}, r"so many steps .*possible"),
        ("local-sgd", {"local_steps": 10**8}, r"--local-steps 100000000 are more .*10,000,000"),
        ("local-sgd", {"options": {"steps": 10**8}}, r"'steps' is 100000000: .*10000000"),
    ],
)
def test_lengths_that_do_not_fit_in_memory(method: str, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        train(method, made_data(), model="linear", engine="serial", rounds=1, **settings)


@pytest.mark.parametrize(
    "flags",
    [
        ["--lr", "1e39"], ["--weight-decay", "1e300"], ["--local-epochs", str(HUGE)], ["--batch-size", str(10**30)],
        ["--rounds", str(10**18)], ["--local-steps", str(HUGE)],
    ],
    ids=lambda f: f[0],
)  # fmt: skip
def test_on_the_command_line(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fedavg", *flags, "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"commonground: '{flags[0][2:].replace('-', '_')}' is ")
    assert not (tmp_path / "run").exists()


def diverges(method: Any, **settings: Any) -> str:
    with pytest.raises(UpdateError, match="not finite") as caught:
        train(method, settings.pop("data", None) or made_data(), rounds=4, engine="serial", **settings)
    return str(caught.value)


def test_the_rate_is_blamed_where_it_is_the_cause() -> None:
    said = diverges("fedavg", model="mlp", lr=1e30)
    assert said.endswith("training diverged; try a smaller --lr (it is 1e+30)")


def test_a_setting_of_the_method_is_named_before_the_rate() -> None:
    said = diverges(FedProx(mu=1e38), model="linear", local_epochs=5)
    assert "look at FedProx's setting mu=1e+38 before" in said


def test_weight_decay_is_named_before_the_rate() -> None:
    assert "look at --weight-decay 1e+30" in diverges("fedavg", model="linear", weight_decay=1e30)


def test_samples_that_float32_cannot_hold_are_named() -> None:
    data = made_data()
    data.x_train[data.train_indices(0)] *= 1e300
    with pytest.raises(DataError, match=r"has a number beyond single precision \(3.4e38\)"):
        train("fedavg", data, model="linear", rounds=1)
    data = made_data()
    data.x_train[data.train_indices(0)] *= 1e30
    assert "the client's samples, which reach " in diverges("fedavg", data=data, model="linear")


@own
class Exploding(FedProx):
    """A method whose loss is not finite, whatever the rate."""

    def client_update(self, client: Any, round: int) -> Any:
        client.fit("all", penalty=lambda own, received: sum(v.sum() for v in own.values()) * float("inf"))
        return client.send("all")


def test_a_tiny_rate_is_not_blamed() -> None:
    said = diverges(Exploding(), model="linear", lr=1e-12)
    assert "that is hardly the rate" in said
    assert "smaller" not in said


def test_adapting_takes_no_rate_out_of_range() -> None:
    from commonground.adapt import adapt

    run = train("fedavg", made_data(), model="linear", rounds=1, engine="serial")
    for lr in (1e39, float("nan"), 0.0, -1.0):
        with pytest.raises(CommonGroundError, match="--lr must be a positive number"):
            adapt(run, made_data(seed=1), [1], lr=lr)


def test_a_value_of_thousands_of_digits_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "fedavg", "--local-steps", "1" * 5000]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--local-steps" in line
    assert len(line) < 1100
