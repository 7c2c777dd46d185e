"""Every method: all it sends is cut and hidden, and its server takes nothing but the sum; or it says why not."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from commonground import train
from commonground.algorithms import Algorithm, Client, Server, Tensors, Update, registry, yardsticks
from commonground.algorithms.fedavg import FedAvg
from commonground.algorithms.fedmtl import FedMTL
from commonground.algorithms.flexlora import FlexLoRA
from commonground.config import RunConfig
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.serial import SerialEngine
from commonground.engine.prepare import prepare_setup
from commonground.engine.setup import Setup
from commonground.errors import ConfigError
from commonground.privacy import WITHIN
from tests.helpers import Notes, fitting, made_data, mlp_options, own

EVERY = registry | yardsticks
REFUSED = {name for name, cls in EVERY.items() if cls.not_private}
SERVER_SEES = {name for name, cls in EVERY.items() if cls.server_sees}
PRIVATE = sorted(set(registry) - REFUSED - {"local"})
CLIP, NOISE = 0.5, 3.0


def test_who_is_refused() -> None:
    """A new method appears here, and somebody has to think of what its clients send."""
    assert {"fedmtl", "fedproto", "flexlora", "flora", "l2gd", "pooled"} == REFUSED
    assert {"flute", "flute-star"} == SERVER_SEES


def values(method: str, **settings: Any) -> dict[str, Any]:
    private = {"dp": "client", "dp_clip": CLIP, "dp_noise": NOISE}
    common = {"rounds": 2, "local_steps": 2, "model": "mlp", "model_options": mlp_options(method, [6]), "device": "cpu"}
    return fitting(
        method, {"algorithm": method, "dtype": "float64", "engine": "serial", **common, **private, **settings}
    )


def made_setup(method: str, **settings: Any) -> Setup:
    return prepare_setup(RunConfig.make(values(method, **settings)), made_data())


def last_round(setup: Setup) -> tuple[SerialEngine, list[ClientResult]]:
    """The clients' round in which all of them send."""
    engine, everyone = SerialEngine(setup), range(setup.data.clients)
    server = Server(dict(setup.initial_shared), clients=setup.data.clients)
    alone = {client: setup.algorithm.message_to(server, client) for client in everyone}
    return engine, engine.train(setup.config.rounds, everyone, setup.initial_shared, alone)


@pytest.mark.parametrize("method", sorted(REFUSED))
def test_who_cannot_be_private_says_why(method: str) -> None:
    said = f"--dp client cannot make {EVERY[method].title} private: {EVERY[method].not_private}"
    with pytest.raises(ConfigError, match=re.escape(said)):
        made_setup(method)


@pytest.mark.parametrize("method", sorted(SERVER_SEES))
def test_what_the_server_is_shown_needs_a_trusted_one(method: str) -> None:
    said = f"all that leaves the clients of {EVERY[method].title}: {EVERY[method].server_sees}"
    with pytest.raises(ConfigError, match=re.escape(said)):
        made_setup(method, dp_where="client")


@pytest.mark.parametrize("method", PRIVATE)
def test_a_private_run(method: str) -> None:
    settings = {name: value for name, value in values(method).items() if name != "algorithm"}
    heard = Notes()
    run = train(method, made_data(), **settings, observer=heard)
    assert np.isfinite(run.personal["mean"])
    assert not [text for text in heard.said if "no participant had a finite training loss" in text]
    assert run.summary["privacy"]["epsilon"] > 0
    assert train(method, made_data(), **settings | {"dp_noise": 30.0}).summary["privacy"]["epsilon"] < 1


@pytest.mark.parametrize("method", PRIVATE)
def test_what_leaves_a_client_is_within_the_clip_norm(method: str) -> None:
    setup = made_setup(method)
    plain = replace(setup, config=setup.config.model_copy(update={"dp": None}), _splits={})
    _, results = last_round(setup)
    _, freely = last_round(plain)
    for result, free in zip(results, freely, strict=True):
        sent, wanted = result.update.tensors, free.update.tensors
        start = setup.algorithm.change_of(setup.initial_shared, sent, setup.buffers)
        length = torch.cat([(sent[n] - start[n]).flatten() for n in start]).norm()
        before = torch.cat([(wanted[n] - start[n]).flatten() for n in start]).norm()
        assert length <= CLIP * (1 + 1e-12)
        assert length == pytest.approx(min(float(before), CLIP))
        for name in start:  # the direction stays
            cut, whole = sent[name] - start[name], wanted[name] - start[name]
            assert torch.allclose(cut, whole * (length / before.clamp(min=1e-300)), atol=1e-12)
        for name in sent.keys() - start.keys():
            assert torch.equal(sent[name], wanted[name])


@pytest.mark.parametrize("method", sorted(set(PRIVATE) - SERVER_SEES))
def test_local_noise_covers_every_number_that_leaves_a_client(method: str) -> None:
    """Two runs that differ in nothing but their noise send nothing that is equal."""
    setup = made_setup(method, dp_where="client", dp_adaptive_clip=0.5)
    secret = replace(setup, config=setup.config.model_copy(update={"dp_secret_noise": True}), _splits={})
    (_, one), (_, other) = last_round(setup), last_round(secret)
    for mine, theirs in zip(one, other, strict=True):
        assert mine.update.tensors.keys() == theirs.update.tensors.keys()
        assert WITHIN in mine.update.tensors
        for name, value in mine.update.tensors.items():
            assert not (value == theirs.update.tensors[name]).any(), name


def test_what_is_sent_as_a_change_is_one_of_nothing() -> None:
    """SCAFFOLD sends y and c_i⁺ − c_i, FedSGD a gradient, FLUTE the body and what its server gives back."""
    x, c, v = torch.tensor([1.0]), torch.tensor([5.0]), torch.tensor([2.0])
    received = {"w": x, "c/w": c}

    def start(method: str, *sent: str) -> dict[str, float]:
        change = registry[method]().change_of(received, dict.fromkeys(sent, v), ["statistic"])
        return {name: float(value) for name, value in change.items()}

    assert start("scaffold", "w", "c/w") == {"w": 1, "c/w": 0}
    assert start("fedsgd", "w") == {"w": 0}
    assert start("flute", "w", "head.weight", "flute/classes") == {"w": 1}
    assert start("fedavg", "w", "other") == {"w": 1, "other": 0}


# -- the server -------------------------------------------------------------------------------------------------------


def served(setup: Setup, updates: Sequence[Update], round: int) -> tuple[Tensors, dict[int, Tensors]]:
    """What the server makes of updates: everything that others are sent, or may be; and its replies."""
    server = Server(
        dict(setup.initial_shared), round=round, clients=setup.data.clients, lr=0.1, buffers=list(setup.buffers)
    )
    for client in range(setup.data.clients):
        setup.algorithm.message_to(server, client)  # some remember what they need
    setup.algorithm.server_update(server, updates, round)
    replies = setup.algorithm.replies(server, updates)
    messages = {
        f"{c}/{n}": v for c in range(setup.data.clients) for n, v in setup.algorithm.message_to(server, c).items()
    }
    return server.shared | {f"memory/{n}": v for n, v in server.memory.items()} | messages, replies


def takes_the_sum_alone(setup: Setup) -> bool:
    """Whether the server's tensors stay if one client's change grows by what another's shrinks."""
    _, results = last_round(setup)
    updates, round = [result.update for result in results], setup.config.rounds
    g = torch.Generator().manual_seed(0)
    names = setup.algorithm.change_of(setup.initial_shared, updates[0].tensors, setup.buffers)
    moved = {n: torch.randn(updates[0].tensors[n].shape, generator=g, dtype=torch.float64) for n in names}

    def shifted(update: Update, sign: float) -> Update:
        return replace(update, tensors={n: v + sign * moved[n] if n in moved else v for n, v in update.tensors.items()})

    one, replies = served(setup, updates, round)
    other, _ = served(setup, [shifted(updates[0], 1), shifted(updates[1], -1), *updates[2:]], round)
    changed = [n for n, v in one.items() if not torch.allclose(v, other[n], atol=1e-9)]
    _, third = served(setup, [updates[0], *(replace(u, tensors=updates[0].tensors) for u in updates[1:])], round)
    own = all(torch.equal(v, third[0][n]) for n, v in replies.get(0, {}).items())
    return not changed and own


@pytest.mark.parametrize("method", PRIVATE)
def test_the_server_takes_nothing_but_the_sum_of_changes(method: str) -> None:
    """Which is why noise on the sum is enough: for the shared tensors, its memory, and its messages to others."""
    assert takes_the_sum_alone(made_setup(method))


def test_that_test_can_fail() -> None:
    for algorithm in (FlexLoRA(), FedMTL(omega="learned")):
        config = RunConfig.make({k: v for k, v in values(algorithm.name).items() if not k.startswith("dp")})
        assert not takes_the_sum_alone(prepare_setup(config, made_data(), algorithm=algorithm))


# -- methods of users -------------------------------------------------------------------------------------------------


@own
@dataclass(frozen=True)
class Silent(FedAvg):
    """FedAvg with a server of its own that says nothing of privacy."""

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        server.shared.update(updates[0].tensors)


@own
@dataclass(frozen=True)
class Judged(Silent):
    """The same, whose author says that it is private."""

    not_private = ""


@own
@dataclass(frozen=True)
class Chatty(FedAvg):
    """FedAvg whose clients send something of their own beside the model."""

    def upload_state(self, initial: Tensors, groups: Any) -> Tensors:
        return {"own/secret": torch.zeros(2, dtype=torch.float64)}

    def client_update(self, client: Client, round: int) -> Tensors:
        return super().client_update(client, round) | {"own/secret": torch.tensor([3e4, 4e4], dtype=torch.float64)}


def of_object(algorithm: Algorithm, **settings: Any) -> Setup:
    return prepare_setup(RunConfig.make(values("fedavg", **settings)), made_data(), algorithm=algorithm)


def test_a_server_of_ones_own_has_to_say_what_it_takes() -> None:
    with pytest.raises(ConfigError, match="cannot make silent private: its own server_update does not say whether"):
        of_object(Silent())
    assert of_object(Judged()).privacy is not None


def test_whatever_else_is_sent_is_cut_and_hidden_with_the_rest() -> None:
    _, results = last_round(of_object(Chatty()))
    for result in results:
        assert float(result.update.tensors["own/secret"].norm()) == pytest.approx(CLIP)
        left = [v for n, v in result.update.tensors.items() if n != "own/secret"]
        assert left


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dp": None}, r"--dp-clip is a setting of differential privacy; add --dp client"),
        ({"weighting": "samples"}, r"--weighting samples would let some count more than others"),
        ({"aggregate": "median"}, r"the noise of a mean of changes, and --aggregate median is none"),
        ({"aggregate": "clip:1"}, r"the noise of a mean of changes, and --aggregate clip:1 is none"),
        ({"dp_clip": None}, r"needs --dp-clip, .* or --dp-adaptive-clip 0\.5, which finds it"),
        ({"dp_noise": None}, r"needs --dp-noise, .* or --dp-epsilon, which finds it"),
        ({"dp_epsilon": 8.0}, r"--dp-noise 3 is not the noise of --dp-epsilon 8 in 2 rounds, which is 0\.8\d+; give"),
        ({"dp_delta": 0.25}, r"--dp-delta 0\.25 must be less than 1/4"),
        (
            {"model_options": {"norm": "batch"}},
            r"running statistics of a normalising layer \('norm1\.running_mean'\), .* \(--batch-norm local\)",
        ),
        (
            {"dp_noise": None, "dp_epsilon": 1e9},
            r"from 0.001 to 1,000,000 makes 2 rounds private to just epsilon 1e\+09",
        ),
        ({"dp_noise": 0.0}, r"'dp_noise' is 0\.0: .*greater than 0"),
        ({"dp_clip": 1e39}, r"'dp_clip' is 1e\+39: .*float32"),
        ({"dp_adaptive_clip": 1.0}, r"'dp_adaptive_clip' is 1\.0: .*less than 1"),
    ],
)
def test_refusals(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        made_setup("fedavg", **settings)
    assert "\n" not in str(caught.value)


def test_one_client_alone_cannot_be_hidden() -> None:
    with pytest.raises(ConfigError, match="hides one client among others, and there is one alone"):
        prepare_setup(RunConfig.make(values("fedavg")), made_data((5,)))


def test_one_client_of_a_federation_takes_the_noise_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere, on its own machine, where the accountant need not be."""
    whole = made_setup("fedavg", dp_noise=None, dp_epsilon=8.0)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    alone = prepare_setup(whole.config, made_data((5,)))
    assert alone.privacy == whole.privacy
    with pytest.raises(ConfigError, match="needs the package dp-accounting"):
        prepare_setup(whole.config.model_copy(update={"dp_noise": None}), made_data((5,)))


@pytest.mark.parametrize("settings", [{"batch_norm": "local"}, {"algorithm": "fedbn"}])
def test_statistics_that_stay_at_home_do_no_harm(settings: dict[str, Any]) -> None:
    model = {"model_options": {"hidden": [6], "norm": "batch"}, "batch_size": 8}
    setup = prepare_setup(RunConfig.make(values("fedavg") | model | settings), made_data((5, 6, 7, 8)))
    _, results = last_round(setup)
    assert not any("running" in name for name in results[0].update.tensors)


def test_robust_aggregates_of_what_is_hidden_already() -> None:
    run = train("fedrep", made_data((5, 6, 7, 8, 9)), rounds=1, dp="client", dp_clip=1.0, dp_noise=1.0,
                dp_where="client", aggregate="median", engine="serial")  # fmt: skip
    assert run.summary["privacy"]["epsilon"] > 0
