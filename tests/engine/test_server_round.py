"""What the server makes of a round's updates: finite, or the round does not count, and the sentence names the cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from commonground import train
from commonground.algorithms import Client, Server, Tensors
from commonground.algorithms.fedavg import FedAvg
from commonground.cli import main
from commonground.engine.backends.serialization import pack
from commonground.engine.observer import Observer
from commonground.engine.state.folder import RunFolder
from commonground.errors import AggregateError, NotFiniteError
from tests.engine.test_bad_updates import named_data, tampering
from tests.helpers import SMALL, TwoLayer, engines_changed, own, seeded, train_whole

VALUES: dict[str, Any] = SMALL | {"engine": "messages"}


def weight(name: str, value: float) -> Callable[[dict[str, Any], Tensors], bytes]:
    def change(fields: dict[str, Any], tensors: Tensors) -> bytes:
        tensors[name].view(-1)[0] = value
        return pack(fields, tensors)

    return change


def test_a_weight_of_an_extreme_size_is_refused_at_once() -> None:
    lie, match = weight("head.weight", 3e38), r"bob in round 2 .*'head\.weight' \(3e\+38\) whose square is not"
    with engines_changed(tampering(1, 2, lie)), pytest.raises(NotFiniteError, match=match):
        train("fedavg", named_data(), model=seeded(TwoLayer), **VALUES)


@own
class Cubes(FedAvg):
    """FedAvg whose clients send NaN where the weights that they were sent are immense."""

    def client_update(self, client: Client, round: int) -> Tensors:
        return {
            name: value - 0 * client.received[name] ** 3 for name, value in super().client_update(client, round).items()
        }


class Notes(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, setup: Any, engine: str, done: int) -> None: ...

    def round(self, row: Any) -> None: ...

    def note(self, text: str) -> None:
        self.told.append(text)

    def end(self) -> None: ...


def test_who_made_the_weights_immense_is_named_and_not_the_next_client_alone() -> None:
    notes = Notes()
    lie, match = weight("head.weight", 1e19), r"update of client ann in round 3 .* client bob"
    with engines_changed(tampering(1, 2, lie)), pytest.raises(NotFiniteError, match=match) as caught:
        train(Cubes(), named_data(), model=seeded(TwoLayer), observer=notes, **VALUES)
    said = "shared tensors had grown to 2.5e+18 in round 2; the largest update is that of client bob (up to 1e+19"
    assert said in str(caught.value)
    assert any(said in note for note in notes.told)


@dataclass(frozen=True)
class Overflows(FedAvg):
    """FedAvg whose server makes something infinite of the second round."""

    where: str = "shared"

    def server_update(self, server: Server, updates: Any, round: int) -> None:
        super().server_update(server, updates, round)
        endless = torch.full_like(server.shared["head.bias"], float("inf"))
        if round == 2 and self.where == "shared":
            server.shared["head.bias"] = endless
        server.memory["own"] = endless if round == 2 and self.where == "memory" else torch.zeros(1)
        if round == 2 and self.where == "division":
            _ = 1 / (round - 2)
        if round == 2 and self.where == "decomposition":
            torch.linalg.cholesky(-torch.eye(2))

    def client_state(self, initial: Tensors) -> Tensors:
        return {"own/bias": torch.zeros_like(initial["first.bias"])}

    def replies(self, server: Server, updates: Any) -> dict[int, Tensors]:
        return {1: {"own/bias": server.shared["first.bias"] / 0}} if self.where == "reply" and server.round == 2 else {}


own(Overflows)


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize(
    ("where", "match"),
    [
        ("shared", "the new shared tensor 'head.bias' would not be finite"),
        ("memory", "the server's own tensor 'own' would not be finite"),
        ("reply", "the reply's tensor 'own/bias' to client bob would not be finite"),
        ("division", r"what the server computes fails \(division by zero\)"),
        ("decomposition", "what the server computes fails "),
    ],
)
def test_a_round_whose_result_is_not_finite_does_not_count(where: str, match: str, engine: str, tmp_path: Path) -> None:
    values = SMALL | {"engine": engine}
    with pytest.raises(
        AggregateError, match=f"^round 2 does not count: .*{match}.* of client (ann|bob|cid|dan)"
    ) as caught:
        train(Overflows(where=where), named_data(), model=seeded(TwoLayer), out=tmp_path / "run", **values)
    assert "\n" not in str(caught.value)
    checkpoint = RunFolder(tmp_path / "run").load()
    assert checkpoint is not None
    assert checkpoint.round == 1
    good = train_whole("fedavg", named_data(), model=seeded(TwoLayer), **(values | {"rounds": 1}))
    assert all(torch.equal(checkpoint.shared[name], value) for name, value in good.run.shared.items())


@own
class InPlace(FedAvg):
    """FedAvg whose server writes into the tensors it was given, and spoils them in the second round."""

    def server_update(self, server: Server, updates: Any, round: int) -> None:
        for name, value in server.mean(updates).items():
            server.shared[name].copy_(value / (0 if round == 2 else 1))


def test_tensors_that_a_method_spoilt_in_place_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(AggregateError, match="round 2 does not count"):
        train(InPlace(), named_data(), model=seeded(TwoLayer), out=tmp_path / "run", **SMALL)
    checkpoint = RunFolder(tmp_path / "run").load()
    assert checkpoint is None or all(bool(torch.isfinite(value).all()) for value in checkpoint.shared.values())


def test_a_client_is_blamed_before_the_server_that_fails_on_its_update() -> None:
    """FlexLoRA's decomposition raises an error of its own at NaN."""
    lie, match = weight("first.lora_A", float("nan")), r"update of client bob in round 2 has a value in 'first\.lora_A'"
    with engines_changed(tampering(1, 2, lie)), pytest.raises(NotFiniteError, match=match):
        train("flexlora", named_data(), model=seeded(TwoLayer), **VALUES)


def test_the_server_optimizer_is_looked_at_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its step may be what is too large; then no client is blamed, and the command ends with 1."""
    wide = ["--clients", "3", "--rounds", "2", "--model", "linear", "--server-optimizer", "momentum"]
    run = ["train", "fedavg", "--data", "digits", *wide, "--out", str(tmp_path / "run")]
    assert main([*run, "--server-lr", "3e38", "--lr", "5"]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "round 1 does not count" in said
    assert "no update is of an extreme size" in said
    assert "try a smaller --server-lr" in said
