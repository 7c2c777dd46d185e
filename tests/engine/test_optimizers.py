"""Adam and AdamW of local training: as torch.optim has them, in every engine and every kind of phase."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from commonground import train
from commonground.algorithms import make_algorithm, registry
from commonground.config import RunConfig
from commonground.engine.clients.linear_head import fit_linear_heads
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.prepare import resolve
from commonground.errors import ConfigError
from tests.algorithms.reference import ALL, BATCH, BODY, HEAD, SEED, network, plan_batches, problem
from tests.helpers import ENGINES, EXACT, Whole, assert_same_run, assert_tensors_close, digits, mlp_options, train_whole
from tests.language import tiny_model, token_data

ADAPTIVE = ("adam", "adamw")
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
DECAY = 0.1
SETTINGS: dict[str, Any] = {
    "seed": SEED, "lr": 0.03, "batch_size": BATCH, "local_epochs": 3, "dtype": "float64", "rounds": 1,
    "weight_decay": DECAY,
}  # fmt: skip


def by_torch(
    optimizer: str, phases: list[tuple[tuple[str, ...], int]], client: int, **given: Any
) -> dict[str, torch.Tensor]:
    """A client's tensors after phases of (names, epochs), each with a new optimizer of PyTorch."""
    model, data = network().double(), problem()
    parameters = dict(model.named_parameters())
    for number, (names, epochs) in enumerate(phases, 1):
        trained = TORCH[optimizer]([parameters[n] for n in names], lr=0.03, weight_decay=DECAY, **given)
        for x, y in plan_batches(data, client, 1, number, epochs=epochs):
            trained.zero_grad()
            F.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            trained.step()
    return {name: value.detach() for name, value in parameters.items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_every_client_trains_as_with_torch(optimizer: str, engine: str) -> None:
    """Clients of unequal size: in the stacked engine the smaller ones stop while the others go on."""
    whole = train_whole("local", problem(), model=network(), engine=engine, optimizer=optimizer, **SETTINGS)
    for client, tensors in enumerate(whole.personal):
        assert_tensors_close(tensors, by_torch(optimizer, [(ALL, 3)], client), 1e-12)


OWN = {"betas": (0.7, 0.9), "eps": 1e-3}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_betas_and_eps_are_those_of_torch(optimizer: str, engine: str) -> None:
    """FedRep's head phase, whose gradient is written out, and its body phase."""
    settings = {**SETTINGS, **OWN, "engine": engine, "optimizer": optimizer, "options": {"head_epochs": 4}}
    whole = train_whole("fedrep", problem(), model=network(), **settings)
    expected = [by_torch(optimizer, [(HEAD, 4), (BODY, 3)], client, **OWN) for client in range(3)]
    usual = by_torch(optimizer, [(HEAD, 4), (BODY, 3)], 0)
    assert not torch.allclose(usual["fc.weight"], expected[0]["fc.weight"], atol=1e-3)
    for client, tensors in enumerate(whole.personal):
        assert_tensors_close(tensors, {n: expected[client][n] for n in HEAD}, 1e-12)
    assert_tensors_close(whole.run.shared, {n: sum(e[n] for e in expected) / 3 for n in BODY}, 1e-12)
    assert (whole.run.summary["betas"], whole.run.summary["eps"]) == ("0.7,0.9", 1e-3)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"betas": "0.9"}, "betas.+'0.9' is not two numbers from 0 to below 1"),
        ({"betas": (0.9, 1.0)}, "betas.+is not two numbers"),
        ({"eps": 0.0}, "eps"),
        ({"betas": "0.9:0.95", "optimizer": "sgd"}, "--betas is a setting of adam and adamw, and FedAvg is trained by"),
        ({"eps": 1e-6}, "--eps is a setting of adam and adamw"),
    ],
)
def test_betas_and_eps_that_do_not_fit(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        train("fedavg", digits(), rounds=1, **given)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_head_phases_on_kept_features(optimizer: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedRep's head phase has its gradient written out, and starts its optimizer anew, as the body phase does."""
    calls: list[Any] = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return fit_linear_heads(*args)

    for module in ("sequential", "stacked"):
        monkeypatch.setattr(f"commonground.engine.clients.{module}.fit_linear_heads", counted)
    whole = train_whole(
        "fedrep", problem(), model=network(), engine=engine, workers=1, optimizer=optimizer,
        options={"head_epochs": 4}, **SETTINGS,
    )  # fmt: skip
    assert calls or engine == "processes"  # there it is called in another process
    expected = [by_torch(optimizer, [(HEAD, 4), (BODY, 3)], client) for client in range(3)]
    for client, tensors in enumerate(whole.personal):
        assert_tensors_close(tensors, {n: expected[client][n] for n in HEAD}, 1e-12)
    assert_tensors_close(whole.run.shared, {n: sum(e[n] for e in expected) / 3 for n in BODY}, 1e-12)


@cache
def on_digits(algorithm: str, engine: str) -> Whole:
    return train_whole(
        algorithm, digits(), engine=engine, dtype="float64", model="mlp", model_options={"hidden": [8]}, rounds=2,
        participation=0.8, batch_size=16, weight_decay=1e-2, lr=0.01, optimizer="adamw",
    )  # fmt: skip


@pytest.mark.engine
@pytest.mark.parametrize("algorithm", ["fedavg", "fedrep", "ditto", "flute", "fedrod", "fedmtl", "fedbabu"])
def test_engines_agree(algorithm: str) -> None:
    serial = on_digits(algorithm, "serial")
    for engine in EXACT:
        assert on_digits(algorithm, engine).sha == serial.sha
    assert_same_run(serial, on_digits(algorithm, "batched"), 1e-9)


@pytest.mark.engine
@pytest.mark.parametrize("algorithm", ["lora", "rolora"])
def test_folded_adapters(algorithm: str, tmp_path: Path) -> None:
    """Factors of several clients whose rows pass the frozen model together."""
    model = tiny_model("bert", tmp_path / "bert")
    runs = [
        train_whole(
            algorithm, token_data(), model=model, model_options={"rank": 2}, engine=engine, dtype="float64", rounds=2,
            batch_size=3, optimizer="adamw", lr=0.01,
        )
        for engine in ("serial", "messages", "batched")
    ]  # fmt: skip
    assert runs[0].sha == runs[1].sha
    assert_same_run(runs[0], runs[2], 1e-8)
    plain = train_whole(algorithm, token_data(), model=model, model_options={"rank": 2}, dtype="float64", rounds=2,
                        batch_size=3, optimizer="sgd", lr=0.01)  # fmt: skip
    assert plain.sha != runs[0].sha


def test_sgd_is_the_default_and_is_written_down(tmp_path: Path) -> None:
    default = train("fedrep", digits(), rounds=1, seed=1, out=tmp_path / "run")
    named = train("fedrep", digits(), rounds=1, seed=1, optimizer="sgd")
    assert default.summary["weights_sha256"] == named.summary["weights_sha256"]
    assert default.summary["optimizer"] == "sgd"
    assert RunConfig.read(tmp_path / "run" / "config.toml")["optimizer"] == "sgd"


REFUSING = ("scaffold", "perfedavg", "apfl", "fedsgd", "local-sgd", "parallel-sgd", "one-shot", "pfedme")


@pytest.mark.parametrize("algorithm", REFUSING)
def test_methods_whose_step_is_sgd_say_so(algorithm: str) -> None:
    with pytest.raises(ConfigError, match=r"takes steps of SGD alone: .+; leave out --optimizer adam"):
        train(algorithm, digits(), rounds=1, optimizer="adam")


def test_no_other_method_steps_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that trains by the smaller verbs in its rounds would pass over the optimizer without a word."""

    def forbidden(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a step beside the optimizer")

    monkeypatch.setattr(SequentialClient, "step", forbidden)
    for name in registry:
        if make_algorithm(name, {}).needs_sgd or name in ("lora", "ffa-lora", "rolora", "flexlora", "flora"):
            continue
        options = mlp_options(name, [4])
        train(name, digits(), rounds=1, engine="serial", model="mlp", model_options=options, optimizer="adam")


def test_another_optimizer_is_refused_by_its_names() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.+'sgd', 'adam' or 'adamw'"):
        train("fedavg", digits(), rounds=1, optimizer="adagrad")


@pytest.mark.parametrize(
    ("algorithm", "given", "optimizer", "lr"),
    [
        ("lora", {}, "adamw", 0.002),
        ("local", {}, "adamw", 0.002),  # the yardstick of a comparison is trained as the methods are
        ("scaffold", {}, "sgd", 0.03),
        ("lora", {"momentum": 0.9}, "sgd", 0.03),
        ("lora", {"optimizer": "sgd"}, "sgd", 0.03),
        ("lora", {"optimizer": "adam", "lr": 0.5}, "adam", 0.5),
    ],
)
def test_language_models_are_trained_by_adamw(
    algorithm: str, given: dict[str, Any], optimizer: str, lr: float, tmp_path: Path
) -> None:
    config = RunConfig.make({"algorithm": algorithm, "model": tiny_model("bert", tmp_path / "bert"), **given})
    resolved = resolve(config, token_data(), make_algorithm(algorithm, {}))
    assert (resolved.optimizer, resolved.lr) == (optimizer, lr)


def test_adam_has_a_learning_rate_of_its_own() -> None:
    run = train("fedavg", digits(), rounds=1, optimizer="adam")
    assert (run.summary["optimizer"], run.summary["lr"]) == ("adam", 0.01)
