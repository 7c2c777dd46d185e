"""Whole runs: equal numbers in every engine and after a resume, what messages hold, secret noise, files and pages."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from commonground import compare, load_run, train
from commonground.adapt import adapt
from commonground.cli import main
from commonground.config import RunConfig
from commonground.data.part import part_of
from commonground.engine.backends.base import Engine
from commonground.engine.backends.message_client import MessageClient
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.prepare import prepare_setup
from commonground.engine.private.secret import kept_secret
from commonground.errors import RunError, UpdateError
from commonground.privacy import CLIP, WITHIN, KeyedNoise, SecretNoise
from tests.helpers import EXACT, Notes, TwoLayer, assert_same_run, engines_changed, made_data, seeded, train_whole

SIZES = (5, 3, 8, 4, 6, 7)
CENTRAL: dict[str, Any] = {"dp": "client", "dp_clip": 0.5, "dp_noise": 1.5, "participation": 0.5}
LOCAL = CENTRAL | {"dp_where": "client", "dp_adaptive_clip": 0.5}
ADAPTIVE = {**CENTRAL, "dp_clip": None, "dp_adaptive_clip": 0.7}
KINDS = pytest.mark.parametrize("kind", [CENTRAL, LOCAL, ADAPTIVE], ids=["central", "local", "adaptive"])


def whole(method: str = "fedrep", **settings: Any) -> Any:
    return train_whole(method, made_data(SIZES), model=seeded(TwoLayer), **settings)


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.engine
@KINDS
def test_every_engine_has_the_same_numbers(kind: dict[str, Any]) -> None:
    serial = whole(**kind, dtype="float64")
    for engine in EXACT:
        other = whole(**kind, dtype="float64", engine=engine)
        assert other.sha == serial.sha
        assert other.run.summary["privacy"] == serial.run.summary["privacy"]
        assert other.run.summary["bytes_up"] == serial.run.summary["bytes_up"]
    assert_same_run(whole(**kind, dtype="float64", engine="batched"), serial, 1e-9)
    assert whole(**{**kind, "dp_noise": 1.6}, dtype="float64").sha != serial.sha


@pytest.mark.engine
@pytest.mark.parametrize("engine", ["serial", "messages"])
@KINDS
def test_a_resumed_run_ends_as_an_unbroken_one(kind: dict[str, Any], engine: str, tmp_path: Path) -> None:
    unbroken = whole(**kind, engine=engine)
    with pytest.raises(ValueError, match="the display broke"):
        whole(**kind, engine=engine, out=tmp_path / "run", observer=Notes(stop_after=2))
    resumed = whole(**kind, engine=engine, out=tmp_path / "run", resume=True)
    assert resumed.sha == unbroken.sha
    assert resumed.run.summary["privacy"] == unbroken.run.summary["privacy"]
    assert load_run(tmp_path / "run", model=seeded(TwoLayer)).summary["privacy"]["rounds"] >= 2


def test_more_rounds_give_away_more_and_other_noise_is_another_run(tmp_path: Path) -> None:
    first = whole(**ADAPTIVE, out=tmp_path / "run").run.summary["privacy"]
    longer = whole(**ADAPTIVE, out=tmp_path / "run", resume=True, rounds=5)
    assert longer.sha == whole(**ADAPTIVE, rounds=5).sha
    assert longer.run.summary["privacy"]["epsilon"] > first["epsilon"]
    with pytest.raises(RunError, match=r"was started with dp_noise = 1\.5, not 2\.5"):
        whole(**{**ADAPTIVE, "dp_noise": 2.5}, out=tmp_path / "run", resume=True, rounds=6)


def test_noise_for_an_epsilon_is_for_so_many_rounds(tmp_path: Path) -> None:
    wanted = {**CENTRAL, "dp_noise": None, "dp_epsilon": 4.0}
    run = whole(**wanted, out=tmp_path / "run").run
    assert run.summary["privacy"]["epsilon"] <= 4.0
    assert run.config.dp_noise == run.summary["privacy"]["noise"]
    with pytest.raises(RunError, match=r"cannot go on to 5: its noise is what --dp-epsilon 4 needs in so many rounds"):
        whole(**wanted, out=tmp_path / "run", resume=True, rounds=5)


# -- what is sent -----------------------------------------------------------------------------------------------------


def told(kind: dict[str, Any], noise: Any = None) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
    """Fields and tensors of every answer to a round's task, as they crossed from client to server."""
    found = []

    def listening(engine: Engine) -> None:
        assert isinstance(engine, MessageEngine)
        if noise is not None:
            vars(engine.setup)["noise"] = noise
        deliver = _with(engine, noise)

        def recorded(number: int, message: bytes) -> bytes:
            answer = deliver(number, message)
            if unpack(message)[0]["kind"] == "train":
                found.append(unpack(answer))
            return answer

        engine.deliver = recorded

    with engines_changed(listening):
        train("fedrep", made_data(SIZES), model=seeded(TwoLayer), rounds=2, engine="messages", seed=1, **kind)
    return found


def _with(engine: MessageEngine, noise: Any) -> Callable[[int, bytes], bytes]:
    """Clients that draw their noise from a source of their own."""

    def deliver(number: int, message: bytes) -> bytes:
        setup = replace(engine.setup, data=part_of(engine.setup.data, [number]), _splits={})
        folder = engine.folder / f"client-{number}"
        return MessageClient(setup, number, folder, durable=False, noise=noise).handle(message)

    return deliver


class Silence(KeyedNoise):
    def normal(self, shape: Any, *key: Any) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch.float64)


def test_nothing_leaves_a_client_without_its_noise() -> None:
    """The same first round with and without noise: the difference is noise of Z·C (and σ_b), in every single number."""
    private, bare = told(LOCAL)[:3], told(LOCAL, Silence(0))[:3]
    drawn, clip = [], LOCAL["dp_clip"]
    for (fields, sent), (_, cut) in zip(private, bare, strict=True):
        assert fields["round"] == 1
        assert sent.keys() == cut.keys() == {WITHIN, "first.weight", "first.bias"}  # and no head
        assert float(cut[WITHIN]) in (0.0, 1.0)
        assert float(sent[WITHIN]) != float(cut[WITHIN])
        drawn += [(sent[n] - cut[n]).flatten() for n in sent if n != WITHIN]
    noise = torch.cat(drawn)
    assert (noise != 0).all()
    z = LOCAL["dp_noise"] / math.sqrt(0.75)  # z_Δ where σ_b = Z
    assert float(noise.std()) == pytest.approx(z * clip, rel=0.25)  # of 75 numbers


def test_a_server_cannot_draw_a_client_s_secret_noise() -> None:
    """With noise of the seed the server computes what a client hid; with the client's own it does not."""
    again = [sent["first.weight"] for _, sent in told(LOCAL)]
    keyed = [sent["first.weight"] for _, sent in told(LOCAL)]
    assert all(torch.equal(a, b) for a, b in zip(again, keyed, strict=True))
    hidden = [sent["first.weight"] for _, sent in told(LOCAL, SecretNoise())]
    other = [sent["first.weight"] for _, sent in told(LOCAL, SecretNoise())]
    assert not any((a == b).any() for a, b in zip(hidden, other, strict=True))
    assert not any((a == b).any() for a, b in zip(hidden, keyed, strict=True))


@pytest.mark.engine
@pytest.mark.parametrize("engine", ["serial", "messages", "processes"])
@pytest.mark.parametrize("kind", [LOCAL, ADAPTIVE], ids=["local", "adaptive"])
def test_a_repeated_round_has_the_same_secret_noise(kind: dict[str, Any], engine: str, tmp_path: Path) -> None:
    """Another draw would be another release of the same round. A new run has a new secret."""
    secret = kind | {"dp_secret_noise": True, "engine": engine, "participation": 1.0}
    with pytest.raises(ValueError, match="the display broke"):
        whole(**secret, out=tmp_path / "one", observer=Notes(stop_after=2))
    key = tmp_path / "one" / "noise.key"
    assert key.stat().st_mode & 0o777 == 0o600
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    ends = [whole(**secret, out=tmp_path / name, resume=True) for name in ("one", "other")]
    assert ends[0].sha == ends[1].sha
    assert ends[0].run.summary["privacy"]["noise_from"] == "a secret"
    assert not key.exists()  # no round will be repeated
    assert whole(**secret, out=tmp_path / "new").sha != ends[0].sha


def test_a_damaged_secret_is_told(tmp_path: Path) -> None:
    (tmp_path / "noise.key").write_bytes(b"short")
    with pytest.raises(RunError, match=r"'.*noise\.key', is damaged: it has 5 bytes, not 32"):
        kept_secret(tmp_path)


@pytest.mark.parametrize("kind", [CENTRAL, LOCAL, {"dp": "example", "dp_clip": 0.5, "dp_noise": 1.5}])
def test_where_a_method_finds_nothing_to_share_nothing_leaves_the_clients(kind: dict[str, Any]) -> None:
    """A linear model has no body; the length of an empty change had no value."""
    run = train("fedrep", made_data(SIZES), model="linear", rounds=1, **kind)
    assert run.summary["privacy"]["epsilon"] == 0
    assert run.summary["privacy"]["hidden_from"] == "everyone: nothing leaves the clients"
    assert run.summary["bytes_up"] == 0


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_a_client_refuses_a_clip_norm_that_is_none(clip: float, tmp_path: Path) -> None:
    config = RunConfig.make({"algorithm": "fedrep"} | LOCAL)
    setup = prepare_setup(config, made_data(SIZES), seeded(TwoLayer))
    client = MessageClient(replace(setup, data=part_of(setup.data, [0]), _splits={}), 0, tmp_path)
    task = {"kind": "train", "round": 1, "safe": 0, "since": None, "last": 0}
    sent = setup.initial_shared
    assert CLIP in sent
    with pytest.raises(UpdateError, match=rf"has a clip norm of {clip:g}, which is not positive"):
        client.handle(pack(task, sent | {CLIP: torch.tensor(clip)}))
    client.handle(pack(task, sent))


def test_heads_are_fine_tuned_at_home() -> None:
    """What follows the last round sends nothing, so it needs no noise and gives nothing away."""
    plain = whole("fedavg", **LOCAL)
    tuned = whole("fedavg", **LOCAL, finetune_epochs=2)
    assert tuned.run.summary["privacy"]["epsilon"] == plain.run.summary["privacy"]["epsilon"]
    assert tuned.run.personal["mean"] != plain.run.personal["mean"]


# -- where it is told -------------------------------------------------------------------------------------------------

FLAGS = ["--clients", "10", "--classes-per-client", "3", "--rounds", "2", "--dp", "client", "--device", "cpu"]


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "train",
        "fedrep",
        *FLAGS,
        "--dp-adaptive-clip",
        "0.5",
        "--dp-epsilon",
        "8",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*command, "--quiet"]) == 0
    capsys.readouterr()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 7.9 < summary["privacy"]["epsilon"] <= 8
    assert summary["privacy"]["last_clip"] != summary["privacy"]["clip"] == 0.1
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Privacy: ε 8.00 at δ 0.079 for all data of one client, against everyone but the server" in page
    assert "Not covered: training losses" in page
    assert main(command) == 2  # there is a run already
    config = tmp_path / "run" / "config.toml"
    again = ["train", "fedrep", "--config", str(config), "--out", str(tmp_path / "again")]
    assert main(again) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "│ privacy │ ε 8.00 at δ 0.079" in shown
    assert "│ not covered: training losses" in shown
    same = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert same["weights_sha256"] == summary["weights_sha256"]


def test_new_clients_join_a_private_run(tmp_path: Path) -> None:
    settings = {**ADAPTIVE, "participation": 1.0, "model": "mlp", "rounds": 1}
    run = train("fedrep", made_data(SIZES), out=tmp_path, **settings)
    assert run.model(0) is not None
    assert adapt(load_run(tmp_path), made_data((5, 6, 7), seed=1), [2], epochs=1, repeats=1)


def test_a_comparison_at_equal_epsilon() -> None:
    found = compare(
        ["fedrep", "fedavg+ft:dp_clip=0.5"], "digits", seeds=1, clients=10, classes_per_client=3, rounds=2,
        dp="client", dp_clip=1.0, dp_epsilon=8.0, device="cpu",
    ).to_dict()  # fmt: skip
    entries = {entry["algorithm"]: entry["privacy"] for entry in found["methods"]}
    assert entries["fedrep"]["clip"] == 1.0
    assert entries["fedavg"]["clip"] == 0.5
    assert entries["fedrep"]["noise"] == entries["fedavg"]["noise"]
    assert entries["local"]["epsilon"] == 0.0  # nothing leaves its clients
    assert any("FedRep ε 8.00 at δ 0.079" in note for note in found["notes"])


def test_the_digest_of_tuned_models_is_that_of_what_was_released() -> None:
    """Of models tuned as wholes nothing is shared, and all runs had the digest of nothing."""
    settings: dict[str, Any] = {"dp": "client", "dp_clip": 0.3, "dp_noise": 0.5, "rounds": 1, "clients": 4}
    digests = set[str]()
    for seed in (1, 2):
        plain = train("fedavg", "digits", seed=seed, **settings)
        tuned = train("fedavg", "digits", seed=seed, finetune_epochs=1, finetune="all", **settings)
        assert tuned.summary["weights_sha256"] == plain.summary["weights_sha256"]
        digests.add(tuned.summary["weights_sha256"])
    assert len(digests) == 2
