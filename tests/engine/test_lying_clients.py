"""Clients and servers that lie: each lie ends in one sentence that names client and round, and nothing of it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground import train
from commonground.algorithms import Tensors
from commonground.engine.backends.base import Engine
from commonground.engine.backends.checks import check_scores
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.folder import RunFolder
from commonground.errors import NotFiniteError, RunError, UpdateError
from tests.campaign.common import drawn
from tests.campaign.lies import HOSTILE
from tests.campaign.messages import Exchange, campaign, engine_of, exchanges, files_in, honest, one_try, outcome
from tests.engine.test_bad_updates import named_data
from tests.helpers import SMALL, TwoLayer, engines_changed, seeded
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
        ("message_client.check_question", "fields"),
        ("message_client.check_tensors", "tensors"),
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
    assert [row["round"] for row in RunFolder(tmp_path / "run").rounds.rows()][:1] == [1]
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
        ("evaluate", {"which": "validation"}, "a test on validation rows, and the client has none"),
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


def test_a_client_without_the_state_it_must_have_loses_no_other() -> None:
    exchange = exchange_of("train", 3, "fedrep")
    later = {"round-000003.safetensors": exchange.files["round-000002.safetensors"]}
    with engine_of(replace(exchange, files=later)) as engine:
        with pytest.raises(RunError, match="no longer has its state of round 2"):
            engine._to_client(exchange.client, exchange.message)
        assert files_in(engine.folder / f"client-{exchange.client}") == later
