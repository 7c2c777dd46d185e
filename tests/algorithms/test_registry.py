"""The contract every algorithm keeps, and the server's mean."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any

import pytest
import torch

from commonground.algorithms import Algorithm, Client, Server, Tensors, Update, make_algorithm, registry
from commonground.algorithms import base as algorithm_base
from commonground.errors import ConfigError
from commonground.models import Groups
from tests.algorithms.reference import network


@pytest.mark.parametrize("name", sorted(registry))
def test_every_algorithm_says_who_it_is(name: str) -> None:
    cls = registry[name]
    assert cls.name == name
    assert all((cls.title, cls.source, cls.__doc__))
    assert is_dataclass(cls)
    assert make_algorithm(name, {}) == cls()


@pytest.mark.parametrize("name", ["local", "fedavg", "fedsgd", "fedper", "lg-fedavg", "fedrep"])
def test_groups_cover_a_model(name: str) -> None:
    algorithm = registry[name]()
    Groups(network()).check_cover(algorithm.shared, algorithm.personal)
    assert set(algorithm.sends(1)) <= set(algorithm.shared)


def test_a_truth_value_is_no_number() -> None:
    with pytest.raises(ConfigError, match=r"^FedProx: 'mu' is True: a number is needed, not a truth value$"):
        make_algorithm("fedprox", {"mu": True})
    with pytest.raises(ConfigError, match=r"'head_epochs' is False: a number is needed, not a truth value$"):
        make_algorithm("fedrep", {"head_epochs": False})
    assert make_algorithm("apfl", {"adaptive": True}).options()


def test_options_are_checked() -> None:
    assert registry["fedrep"].options() == {"head_epochs": 10, "body_epochs": None}
    assert make_algorithm("fedrep", {"head_epochs": "3"}).head_epochs == 3  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError,
        match=r"FedRep has no setting 'heads' \(did you mean 'head_epochs'\?\); it has head_epochs, body_epochs",
    ):
        make_algorithm("fedrep", {"heads": 3})
    with pytest.raises(ConfigError, match="'head_epochs' is 'many'"):
        make_algorithm("fedrep", {"head_epochs": "many"})
    with pytest.raises(ConfigError, match="unknown algorithm 'fedrepp'"):
        make_algorithm("fedrepp", {})
    with pytest.raises(ConfigError, match=r"'mine\.py' names a file, and no algorithm in it; write mine\.py:NAME"):
        make_algorithm("mine.py", {})


def test_a_definition_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, type[Algorithm]] = {}
    monkeypatch.setattr(algorithm_base, "registry", kept)

    @dataclass(frozen=True)
    class Mine(Algorithm):
        name = "mine"

        def client_update(self, client: Client, round: int) -> Tensors:
            return {}

    assert kept["mine"].__name__ == Mine.__name__

    class Child(Mine):
        """Without a name of its own it does not take its parent's place."""

    assert kept["mine"] is not Child


def test_mean_by_hand() -> None:
    updates = [
        Update(0, 1, {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}),
        Update(4, 3, {"w": torch.tensor([5.0, -2.0], dtype=torch.float64)}),
    ]
    kept = [u.tensors["w"].clone() for u in updates]
    uniform = Server({}, weighting="uniform", lr=0.1).mean(updates)["w"]
    weighted = Server({}, weighting="samples", lr=0.1).mean(updates)["w"]
    assert uniform.tolist() == [3.0, 0.0]  # (1+5)/2, (2−2)/2
    assert weighted.tolist() == [4.0, -1.0]  # (1·1+3·5)/4, (1·2−3·2)/4
    assert all(torch.equal(u.tensors["w"], k) for u, k in zip(updates, kept, strict=True))


def test_the_default_server_replaces_only_what_was_sent() -> None:
    server = Server({"a": torch.zeros(1), "b": torch.ones(1)}, weighting="uniform", lr=0.1)
    registry["fedavg"]().server_update(server, [Update(0, 1, {"a": torch.full((1,), 3.0)})], 1)
    assert (server.shared["a"].item(), server.shared["b"].item()) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("flute", {"server_lr": -1.0}, "'server_lr' is -1"),
        ("flute-star", {"collapse_penalty": -0.1}, "'collapse_penalty' is -0.1"),
        ("flute-star", {"head_epochs": -1}, "'head_epochs' is -1"),
        ("fedrep-star", {"head_epochs": -1}, "'head_epochs' is -1"),
        ("l2gd", {"alpha": -1.0}, "'alpha' is -1"),
        ("fedcp", {"discrepancy_penalty": -1.0}, "'discrepancy_penalty' is -1"),
        ("fedbabu", {"tune_epochs": -1}, "'tune_epochs' is -1"),
    ],
)
def test_weights_and_epochs_are_not_negative(method: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_algorithm(method, settings)
