"""Whole runs of ``--dp example``: equal in every engine, plain SGD without noise, ε by hand, and what stays at home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import commonground as cg
from commonground import compare, load_run
from commonground.algorithms.head_tuning import HeadTuning
from commonground.cli import main
from commonground.config import RunConfig
from commonground.engine.backends.serial import score_clients
from commonground.engine.clients.hiding import Hiding
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.prepare import prepare_setup
from commonground.errors import ModelError
from commonground.privacy import usual_delta
from commonground.privacy.accounting import GAUSSIAN
from tests.helpers import (
    EXACT,
    Notes,
    TwoLayer,
    assert_same_run,
    dropping_chain,
    images,
    made_data,
    seeded,
    train_whole,
)
from tests.network.test_network_engine import SETTINGS, data_of, over
from tests.network.town import Town
from tests.privacy.test_accounting import exact
from tests.privacy.test_network import keys_of

SIZES = (5, 3, 8, 4, 6, 7)
PRIVATE: dict[str, Any] = {"dp": "example", "dp_clip": 0.5, "dp_noise": 1.5, "participation": 0.5}
SHORT = {"options": {"head_epochs": 1}, "rounds": 2}


def whole(method: str = "fedrep", **settings: Any) -> Any:
    model = settings.pop("model", None) or seeded(TwoLayer)
    return train_whole(method, made_data(settings.pop("sizes", SIZES)), model=model, **settings)


@pytest.mark.engine
def test_every_engine_has_the_same_numbers() -> None:
    settings = PRIVATE | {"dtype": "float64", "options": {"head_epochs": 2}}
    serial = whole(**settings)
    for engine in EXACT:
        other = whole(**settings, engine=engine)
        assert other.sha == serial.sha
        assert other.run.summary["privacy"] == serial.run.summary["privacy"]
    assert_same_run(whole(**settings, engine="batched"), serial, 1e-9)
    assert whole(**settings | {"dp_noise": 1.6}).sha != serial.sha


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedrep", {"weight_decay": 0.1, "options": {"head_epochs": 2}}),
        ("fedprox", {"clip_norm": 0.5}),
        ("scaffold", {"model": dropping_chain}),
        ("fedavg", {"optimizer": "adam", "head_lr": 0.01}),
    ],
)
def test_without_noise_and_cuts_it_is_plain_training(
    method: str, settings: dict[str, Any], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole batches: momentum, weight decay, penalties, corrections and dropout come out as they do without."""
    common = {"sizes": (8, 4, 12), "dtype": "float64", "engine": engine, **settings}
    made = {"model": seeded(common.pop("model"))} if "model" in common else {}
    plain = whole(method, **common, **made)
    draw = Hiding._step_noise
    monkeypatch.setattr(Hiding, "_step_noise", lambda *args: [0 * drawn for drawn in draw(*args)])
    private = whole(method, **common, **made, dp="example", dp_clip=1e3, dp_noise=1.0)
    assert_same_run(private, plain, 1e-9)


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_convolutions_are_moved_along_their_own_gradients(
    optimizer: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their weights lie in memory with the channels last, and gradients of single examples with the channels first."""
    data = images((8, 4, 12))  # whole batches
    common: dict[str, Any] = {
        "model": "cnn", "model_options": {"channels": (8, 8), "hidden": (16, 8)}, "dtype": "float64", "rounds": 2,
        "optimizer": optimizer, "batch_size": 4, "eps": 1e-3, "lr": 0.05, "engine": engine, "workers": 1,
    }  # fmt: skip
    common = {key: value for key, value in common.items() if optimizer != "sgd" or key != "eps"}
    plain = cg.train("fedavg", data, **common)
    monkeypatch.setattr(Hiding, "_step_noise", lambda self, sums, step: [
        torch.zeros(sum(value.numel() for value in one.values()), dtype=torch.float64) for one in sums
    ])  # fmt: skip
    private = cg.train("fedavg", data, **common, dp="example", dp_clip=1e6, dp_noise=1.0)
    earlier = cg.train("fedavg", data, **common | {"rounds": 1}).shared
    for name, value in plain.shared.items():
        assert (private.shared[name] - value).abs().max() < 1e-9, name
        assert (value - earlier[name]).abs().max() > 1e-5, f"{name} has hardly moved"


def test_small_parts_of_a_batch_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    few = PRIVATE | {"options": {"head_epochs": 1}, "rounds": 1, "dtype": "float64"}
    at_once = {engine: whole(**few, engine=engine) for engine in ("serial", "batched")}
    monkeypatch.setattr("commonground.engine.clients.example_gradients.HELD", 1)
    for engine, run in at_once.items():
        assert_same_run(whole(**few, engine=engine), run, 1e-12)


@pytest.mark.parametrize("settings", [{"validation_fraction": 0.3, "early_stopping": 5}, {"train_samples": 20}])
def test_a_row_of_another_class_changes_no_other_that_is_trained_on(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)).astype(np.float32), rng.integers(0, 4, 30)

    def kept(labels: Any, dp: dict[str, Any]) -> set[int]:
        data = cg.FederatedDataset.from_arrays([(x, labels, x[:2], labels[:2])] * 2, classes=4)
        values = {"algorithm": "fedavg", "model": "linear", "rounds": 1, **dp, **settings}
        return set(prepare_setup(RunConfig.make(values), data).data.train_indices(0).tolist())

    def others(dp: dict[str, Any]) -> int:
        whole, changed = kept(y, dp), [np.where(np.arange(30) == row, (y + 1) % 4, y) for row in range(30)]
        return max(len(whole - kept(labels, dp) - {row}) for row, labels in enumerate(changed))

    assert others({"dp": "example", "dp_clip": 1.0, "dp_noise": 1.0}) == 0
    assert others({}) > 0  # spread over the classes


# -- epsilon ----------------------------------------------------------------------------------------------------------


def test_epsilon_by_hand() -> None:
    """FedRep with 2 epochs of the head and 1 of the body: 3 passes in each of 3 rounds, sensitivity 2C against Z·C."""
    told = whole(**PRIVATE | {"participation": 1.0}, options={"head_epochs": 2}).run.summary["privacy"]
    delta = usual_delta(sum(SIZES))
    assert told["epsilon"] == pytest.approx(exact(2 * 0.5, 1.5 * 0.5, 9, delta), rel=1e-6)
    assert told | {
        "level": "example", "delta": delta, "clip": 0.5, "noise": 1.5, "passes": 9, "rounds": 3, "clients": 6,
        "neighbours": "one training example of one client replaced", "hidden_from": "the server and everyone else",
        "accountant": GAUSSIAN, "noise_from": "seed", "participants": 6,
    } == told  # fmt: skip
    once = whole("fedavg", dp="example", dp_clip=0.5, dp_noise=1.5, rounds=1).run
    assert once.summary["privacy"]["epsilon"] == pytest.approx(exact(2, 1.5, 1, delta), rel=1e-6)


def test_every_client_has_its_own_epsilon(tmp_path: Path) -> None:
    run = whole(**PRIVATE, out=tmp_path / "run").run
    found = {row["rounds"]: row["epsilon"] for row in run.clients}
    assert len(found) > 1
    for rounds, epsilon in found.items():
        assert epsilon == pytest.approx(exact(2, 1.5, 11 * rounds, usual_delta(sum(SIZES))) if rounds else 0.0)
    assert max(found.values()) == run.summary["privacy"]["epsilon"]
    assert "epsilon" in (tmp_path / "run" / "clients.csv").read_text().splitlines()[0]
    assert "epsilon" not in whole().run.clients[0]


def test_noise_for_an_epsilon(tmp_path: Path) -> None:
    wanted = {**PRIVATE, **SHORT, "dp_noise": None, "dp_epsilon": 4.0}
    run = whole(**wanted, out=tmp_path / "run").run
    assert 3.99 < run.summary["privacy"]["epsilon"] <= 4.0
    assert run.config.dp_noise == run.summary["privacy"]["noise"]
    assert load_run(tmp_path / "run", model=seeded(TwoLayer)).summary["privacy"]["epsilon"] <= 4.0
    again = whole(**wanted | {"dp_noise": run.config.dp_noise})
    assert again.sha == run.summary["weights_sha256"]


@pytest.mark.parametrize("engine", ["serial", "messages"])
def test_a_repeated_round_has_the_same_secret_noise(engine: str, tmp_path: Path) -> None:
    secret = PRIVATE | {"dp_secret_noise": True, "engine": engine, "options": {"head_epochs": 0}}
    with pytest.raises(ValueError, match="the display broke"):
        whole(**secret, out=tmp_path / "run", observer=Notes(stop_after=2))
    keys = {path.read_bytes() for path in (tmp_path / "run").rglob("noise.key")}
    assert len(keys) >= (1 if engine == "serial" else 3)  # by messages each client has its own
    first = whole(**secret, out=tmp_path / "run", resume=True)
    assert first.run.summary["privacy"]["noise_from"] == "a secret"
    assert whole(**secret, out=tmp_path / "new").sha != first.sha


def test_clients_elsewhere_are_private(tmp_path: Path) -> None:
    """The server, which has no samples, finds the noise; each client draws it from a secret of its own."""
    kind: dict[str, Any] = {"dp": "example", "dp_clip": 0.5, "dp_epsilon": 8.0, "options": {"head_epochs": 0}}
    town = Town(data_of(), tmp_path / "sites")
    keys = keys_of(town)
    run = over(town, tmp_path / "run", algorithm="fedrep", **SETTINGS, **kind)
    own = [cg.load_run(next((folder / "models").iterdir())).summary["privacy"] for folder in town.folders]
    assert max(told["epsilon"] for told in own) == run.summary["privacy"]["epsilon"]
    assert 7.9 < run.summary["privacy"]["epsilon"] <= 8
    assert run.summary["privacy"]["noise_from"] == "a secret"
    assert len(keys) == len(set(keys.values())) == 4
    assert not list((tmp_path / "sites").rglob("noise.key"))


# -- what stays at home -----------------------------------------------------------------------------------------------


def test_after_the_last_round_heads_are_tuned_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, tuned = whole("fedavg", **PRIVATE), whole("fedavg", **PRIVATE, finetune_epochs=2)
    assert tuned.run.summary["privacy"]["epsilon"] == plain.run.summary["privacy"]["epsilon"]
    config = RunConfig.make({"algorithm": "fedavg"} | PRIVATE)
    setup = prepare_setup(config, made_data(SIZES), seeded(TwoLayer))
    assert setup.examples is not None
    assert setup.with_algorithm(HeadTuning(), setup.initial).examples is None

    babu = prepare_setup(RunConfig.make({"algorithm": "fedbabu"} | PRIVATE), made_data(SIZES), seeded(TwoLayer))
    kept = {name: value.unsqueeze(0) for name, value in babu.initial_personal.items()}
    bare = replace(babu, config=babu.config.model_copy(update={"dp": None}), _splits={})

    def drawn(*_: Any) -> Tensor:
        raise AssertionError("noise at home")

    monkeypatch.setattr(Hiding, "_step_noise", drawn)
    scores = [score_clients(SequentialClient(s), [0], s.initial_shared, kept, "personal", 1) for s in (babu, bare)]
    assert scores[0].loss.tolist() == scores[1].loss.tolist()
    with pytest.raises(ModelError, match="noise at home"):
        whole("fedavg", **PRIVATE)


# -- where it is told -------------------------------------------------------------------------------------------------


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--clients",
        "6",
        "--classes-per-client",
        "3",
        "--rounds",
        "1",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "r"),
    ]
    private = [
        "--dp",
        "example",
        "--dp-clip",
        "1",
        "--dp-epsilon",
        "8",
        "--set",
        "head_epochs=1",
        "--set",
        "model.hidden=[4]",
    ]
    assert main(["train", "fedrep", *flags, *private]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "for one training example, against the server and everyone else" in shown
    assert "2 passes over the data" in shown
    page = (tmp_path / "r" / "report.html").read_text()
    assert "gradients of examples cut to 1, noise" in page
    assert "Not covered: training losses" in page


def test_a_comparison_at_equal_epsilon() -> None:
    found = compare(
        ["fedrep:head_epochs=1", "fedavg+ft"], "digits", seeds=1, clients=6, classes_per_client=3, rounds=1,
        dp="example", dp_clip=1.0, dp_epsilon=8.0, device="cpu", model_options={"hidden": [4]},
    ).to_dict()  # fmt: skip
    entries = {entry["algorithm"]: entry["privacy"] for entry in found["methods"]}
    assert entries["fedrep"]["passes"] == 2
    assert entries["fedavg"]["passes"] == 1
    assert entries["fedrep"]["noise"] == pytest.approx(entries["fedavg"]["noise"] * 2**0.5, rel=1e-3)
    assert entries["local"]["epsilon"] == 0.0
    assert any("Differential privacy of single examples" in note for note in found["notes"])
