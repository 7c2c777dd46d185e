"""Clients and servers that lie: each lie ends in one sentence that names client and round, and nothing of it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground import train
from commonground.algorithms import Client, Server, Tensors
from commonground.algorithms.fedavg import FedAvg
from commonground.cli import main
from commonground.engine.backends.base import Engine
from commonground.engine.backends.checks import check_scores
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.evaluation import Scores
from commonground.engine.observer import Observer
from commonground.engine.setup import Setup
from commonground.engine.state.folder import RunFolder
from commonground.errors import AggregateError, NotFiniteError, UpdateError
from tests.campaign.common import drawn
from tests.campaign.lies import HOSTILE
from tests.campaign.messages import Exchange, campaign, engine_of, exchanges, files_in, honest, one_try, outcome
from tests.engine.test_bad_updates import named_data, tampering
from tests.helpers import SMALL, TwoLayer, engines_changed, own, seeded, train_whole
from tests.other_tasks import multilabel_data, regression_data

VALUES: dict[str, Any] = SMALL | {"engine": "messages"}


def exchange_of(kind: str, round: int, title: str = "fedavg {'weighting'") -> Exchange:
    return next(e for e in exchanges() if (e.kind, e.round) == (kind, round) and e.title.startswith(title))


# -- all sorts of lies ----------------------------------------------------------------------------------------------


def test_lies_in_both_directions() -> None:
    tally = campaign(seed=14, count=400, minutes=2)
    assert tally.findings == ()
    assert tally.held == tally.tried == 400


class _Equal(str):
    def __ne__(self, other: object) -> bool:
        return False


@pytest.mark.parametrize(
    ("believed", "sort"),
    [
        ("base.check_scores", "fields"),
        ("checks.check_updates", "tensors"),
        ("checks.refuse_not_finite", "tensors"),
        ("messages.check_question", "fields"),
        ("messages.check_tensors", "tensors"),
        ("serialization._sha256", "bytes"),
    ],
)
def test_the_campaign_finds_who_believes_them(believed: str, sort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = exchanges()
    monkeypatch.setattr(f"commonground.engine.backends.{believed}", lambda *args: _Equal())
    found = (one_try(drawn(0, number), heard, sort) for number in range(400))
    assert any(wrong for _, wrong in filter(None, found))


def test_an_honest_exchange_is_taken_again() -> None:
    """What the lies are compared with: the recorded answer, and the client asked once more, say the same."""
    for exchange in exchanges()[:: len(exchanges()) // 25]:
        with engine_of(exchange) as engine:
            deliver = engine.deliver
            engine.deliver = lambda client, _, to=deliver, message=exchange.message: to(client, message)  # type: ignore[misc]
            assert outcome(engine, exchange) == honest(exchange)


# -- answers --------------------------------------------------------------------------------------------------------


def answering(kind: str, round: int, change: Callable[[dict[str, Any], Tensors], bytes]) -> Callable[[Engine], None]:
    """Client bob's answers of a kind in one round are others."""

    def change_engine(engine: Engine) -> None:
        assert isinstance(engine, MessageEngine)
        deliver = engine.deliver

        def between(number: int, message: bytes) -> bytes:
            asked, answer = unpack(message)[0], deliver(number, message)
            hit = (number, asked["kind"], asked["round"]) == (1, kind, round)
            return change(*unpack(answer)) if hit else answer

        engine.deliver = between

    return change_engine


LIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "more right than there are": ("evaluate", {"sums": {"accuracy": 10**6}}, "'accuracy'=1000000 over 4 samples"),
    "less than nothing right": ("evaluate", {"sums": {"accuracy": -1}}, "'accuracy'=-1 over 4 samples; .* 0 to 4"),
    "half a sample right": ("evaluate", {"sums": {"accuracy": 1.5}}, "whole numbers of 0 to 4"),
    "more test samples": ("evaluate", {"count": 5}, "is of 5 samples, and the client has 4"),
    "a loss of a hundred digits": ("evaluate", {"loss": 10**400}, "a number in it has 401 digits"),
    "a loss that overflows": ("evaluate", {"loss": 1e300}, "'loss'=1e.300, which"),
    "no test loss": ("evaluate", {"loss": None}, "the field 'loss' is None"),
    "another score": ("evaluate", {"sums": {"f1": 1}}, "its scores are 'f1' instead of 'accuracy'"),
    "true samples": ("train", {"samples": True}, "'samples' is True"),
    "a million samples": ("train", {"samples": 10**6}, "claims 1000000 training samples, and the client has 3"),
    "endless samples": ("train", {"samples": 10**309}, "a number in it has 310 digits"),
    "another client": ("train", {"client": 2}, "that of client 2 in round 2"),
    "an older answer": ("train", {"round": 1}, "that of client 1 in round 1"),
    "a hostile field": ("train", {HOSTILE.replace("\ud800", ""): 1}, r"the field '\\x1b\[2J.{150,200}…' is not known"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_does_not_reach_the_run(lie: str, tmp_path: Path) -> None:
    kind, fields, match = LIES[lie]
    changed = answering(kind, 2, lambda old, tensors: pack(old | fields, tensors))
    with engines_changed(changed), pytest.raises(UpdateError, match=rf"client bob in round 2.*{match}") as caught:
        train("fedavg", named_data(), model=seeded(TwoLayer), out=tmp_path / "run", weighting="samples", **VALUES)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700
    assert [row["round"] for row in RunFolder(tmp_path / "run").rows()][:1] == [1]
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_client_that_fails_is_quoted() -> None:
    changed = answering("train", 2, lambda old, tensors: pack({"error": HOSTILE}, {}))
    with (
        engines_changed(changed),
        pytest.raises(UpdateError, match=r"client bob in round 2 .* it failed, and says") as e,
    ):
        train("fedavg", named_data(), model=seeded(TwoLayer), **VALUES)
    assert str(e.value).isprintable()
    assert len(str(e.value)) < 400


@pytest.mark.parametrize("data", [regression_data, multilabel_data])
def test_scores_are_within_the_bounds_that_their_task_says(data: Any) -> None:
    """Also of outputs of any size, for each row and each sum of rows."""
    task, outputs = data().task, data().classes
    draw = torch.Generator().manual_seed(0)
    output = 10 ** (6 * torch.rand(200, outputs, generator=draw) - 3) * torch.randn(200, outputs, generator=draw)
    y = (torch.randn(200, outputs, generator=draw) > 0).float()
    scores, bounds = task.scores(output, y), task.score_bounds(outputs)
    assert set(scores) == set(bounds)
    for name, value in scores.items():
        low, high, whole, shape = bounds[name]
        assert tuple(value.shape[1:]) == shape
        assert bool(((low <= value) & (value <= high)).all())
        assert not whole or torch.equal(value.double(), value.double().round())


def test_figures_that_are_not_finite_are_refused_in_every_engine() -> None:
    found: list[Setup] = []
    with engines_changed(lambda engine: found.append(engine.setup)):
        train("fedavg", named_data(), model=seeded(TwoLayer), **SMALL)
    setup, clients = found[0], np.array([0, 1])
    good = Scores(clients, np.array([4, 4]), np.ones(2), {"accuracy": np.array([0.0, 4.0])}, setup.data.task)
    check_scores(setup, good, 3)
    for changed in ({"loss": np.array([1.0, np.nan])}, {"sums": {"accuracy": np.array([1.0, np.inf])}}):
        with pytest.raises(NotFiniteError, match="client bob in round 3"):
            check_scores(setup, replace(good, **changed), 3)


# -- messages -------------------------------------------------------------------------------------------------------


def test_a_reply_of_an_impossible_round_leaves_the_client_as_it_is() -> None:
    exchange = exchange_of("reply", 2, "flute")
    tensors = unpack(exchange.message)[1]
    with engine_of(exchange) as engine:
        for round, match in [(-1, "greater than or equal to 1"), (3, "not the last one of this client"), (4, "has 3")]:
            with pytest.raises(UpdateError, match=f"the server's message to client {exchange.name} .*{match}"):
                engine._to_client(exchange.client, pack({"kind": "reply", "round": round}, tensors))
            assert files_in(engine.folder / f"client-{exchange.client}") == exchange.files
        (engine.folder / f"client-{exchange.client}" / "round--00001.safetensors").touch()  # as it was left once
        assert unpack(engine._to_client(exchange.client, exchange.message)) == ({}, {})


@pytest.mark.parametrize(
    ("kind", "fields", "match"),
    [
        ("train", {"round": -1}, "'train.round' is -1"),
        ("train", {"round": 4}, "of round 4, and the run has 3"),
        ("train", {"safe": 2}, "safe=2 is not before round 2"),
        ("train", {"since": 1}, "leaves out tensors of round 1, which fedavg does not keep"),
        ("evaluate", {"which": "all"}, "'evaluate.which' is 'all'"),
        ("digest", {"kind": "secrets"}, "Input tag 'secrets'"),
    ],
)
def test_a_message_that_no_run_sends_is_refused(kind: str, fields: dict[str, Any], match: str) -> None:
    exchange = exchange_of(kind, 3 if kind == "digest" else 2)
    old, tensors = unpack(exchange.message)
    with engine_of(exchange) as engine, pytest.raises(UpdateError, match=f"to client ann .*{match}"):
        engine._to_client(exchange.client, pack(old | fields, tensors))


def test_what_is_not_finite_is_not_trained_on() -> None:
    exchange = exchange_of("train", 2)
    fields, tensors = unpack(exchange.message)
    tensors["fc1.bias"][1] = float("nan")
    with engine_of(exchange) as engine:
        with pytest.raises(UpdateError, match=r"client ann of round 2 .* a value in 'fc1\.bias' that is not finite"):
            engine._to_client(exchange.client, pack(fields, tensors))
        assert files_in(engine.folder / f"client-{exchange.client}") == exchange.files


# -- what the server makes of it ------------------------------------------------------------------------------------


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

    def replies(self, server: Server, updates: Any) -> dict[int, Tensors]:
        return (
            {1: {"first.bias": server.shared["first.bias"] / 0}} if self.where == "reply" and server.round == 2 else {}
        )


own(Overflows)


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize(
    ("where", "match"),
    [
        ("shared", "the new shared tensor 'head.bias' would not be finite"),
        ("memory", "the server's own tensor 'own' would not be finite"),
        ("reply", "the reply's tensor 'first.bias' to client bob would not be finite"),
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
