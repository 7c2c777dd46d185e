"""What a round that is repeated, or asked again, gives away: nothing beside what ε counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import commonground as cg
from commonground.algorithms import Tensors
from commonground.config import RunConfig
from commonground.data.part import part_of
from commonground.engine.backends.message_client import MessageClient
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.loop import Loop
from commonground.engine.prepare import prepare_setup
from commonground.engine.private.releases import note_release, releases
from commonground.engine.private.summary import privacy_summary
from commonground.engine.sampling import sample_clients
from commonground.errors import ConfigError, RunError, UpdateError
from commonground.network.post import Letter
from commonground.privacy import Budget, KeyedNoise, SecretNoise, noise_for_numbers
from tests.helpers import made_data
from tests.network.test_network_engine import data_of, over
from tests.network.town import Town

SETTINGS: dict[str, Any] = {"rounds": 2, "model": "linear", "threads": 1, "seed": 5, "algorithm": "fedavg"}
CENTRAL: dict[str, Any] = {"dp": "client", "dp_clip": 0.3, "dp_noise": 20.0, "dp_delta": 1e-5}


def flat(tensors: Tensors) -> torch.Tensor:
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / a.norm() / b.norm())


def test_noise_is_that_of_its_numbers() -> None:
    secret, numbers = SecretNoise(), {"w": torch.arange(3.0), "b": torch.ones(2)}
    drawn = [noise_for_numbers(secret, dict(numbers)).normal((4,), "server", 1) for _ in range(2)]
    assert torch.equal(*drawn)
    for other in ({**numbers, "b": torch.tensor([1.0, 1.0 + 1e-7])}, {"w": numbers["w"]}, {"a": numbers["w"]}):
        assert not (noise_for_numbers(secret, other).normal((4,), "server", 1) == drawn[0]).any()
    seeded = KeyedNoise(3)
    assert noise_for_numbers(seeded, numbers) is seeded


def test_a_round_that_is_repeated_with_another_client_gives_no_update_away(tmp_path: Path) -> None:
    """The server is lost while round 1 is tested, a client having been absent; with the same noise on both outcomes
    their difference is that client's update.
    """
    town, sent = Town(data_of(), tmp_path / "sites"), []

    def first(node: int, asked: Letter, answer: Letter) -> Letter | UpdateError:
        if asked.kind != "ask":
            return answer
        fields, tensors = unpack(asked.body)
        if fields["kind"] == "train":
            return UpdateError("it did not answer") if node == 102 else answer
        sent.append(tensors)
        raise OSError("the power is gone")

    town.spoil = first
    with pytest.raises(OSError, match="the power is gone"):
        over(town, tmp_path / "run", **SETTINGS, **CENTRAL)
    town.spoil = lambda node, asked, answer: answer
    begun = len(town.letters)
    run = over(town, tmp_path / "run", resume=True, **SETTINGS, **CENTRAL)
    asked = [unpack(letter.body) for _, letter, _ in town.letters[begun:] if letter.kind == "ask"]
    again = next(tensors for fields, tensors in asked if fields["kind"] == "evaluate" and fields["round"] == 1)
    start = next(tensors for fields, tensors in asked if fields["kind"] == "train" and fields["round"] == 1)
    names = [name for name in start if name in sent[0] and name in again]
    before, after, base = (flat({name: t[name] for name in names}) for t in (sent[0], again, start))
    revealed = 4 * (after - base) - 3 * (before - base)
    true = next(
        flat({name: unpack(answer.body)[1][name] for name in names}) - base
        for node, letter, answer in town.letters[begun:]
        if node == 102 and letter.kind == "ask" and unpack(letter.body)[0].get("kind") == "train"
    )
    # With one noise for both it is 1 to eight digits; of two that are drawn apart, in 15 dimensions, about ±0.3.
    assert abs(cosine(revealed, true)) < 0.97
    assert revealed.norm() > 10 * true.norm()
    told = run.summary["privacy"]
    assert (told["released_again"], told["rounds"]) == (1, 3)
    assert (
        told["epsilon"]
        > over(Town(data_of(), tmp_path / "b"), tmp_path / "c", **SETTINGS, **CENTRAL).summary["privacy"]["epsilon"]
    )


def test_what_left_the_server_is_counted_once(tmp_path: Path) -> None:
    assert releases(tmp_path) == {}
    one, other = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    for round, tensors in ((1, one), (2, one), (2, one), (2, other), (3, one)):
        note_release(tmp_path, round, tensors)
    assert releases(tmp_path) == {1: 1, 2: 2, 3: 1}
    with (tmp_path / "releases.jsonl").open("a") as file:
        file.write('{"round": 4, "sha2')  # the power went
    assert releases(tmp_path) == {1: 1, 2: 2, 3: 1}
    for tensors in (one, other):
        note_release(tmp_path, 4, tensors)
    assert releases(tmp_path) == {1: 1, 2: 2, 3: 1, 4: 2}
    (tmp_path / "releases.jsonl").write_text('{"round": "x"}\n')
    with pytest.raises(RunError, match=r"releases\.jsonl' is damaged"):
        releases(tmp_path)


def test_two_releases_of_one_batch_are_one_of_less_noise() -> None:
    """They are of the same participants, whom one sampling hides, and not two."""
    twice = Budget(2.0, 0, 1000, 10, (2,)).epsilon(1e-5)
    assert twice == Budget(2.0 / 2**0.5, 1, 1000, 10).epsilon(1e-5)
    assert twice[0] > 2 * Budget(2.0, 2, 1000, 10).epsilon(1e-5)[0]
    assert Budget(2.0, 3, 50, 50, (2, 4)).epsilon(1e-5) == Budget(2.0, 9, 50, 50).epsilon(1e-5)
    both = Budget(2.0, 5, 1000, 10, (2, 2)).epsilon(1e-5)[0]
    assert twice[0] < both < twice[0] + Budget(2.0, 5, 1000, 10, (2,)).epsilon(1e-5)[0]


@pytest.mark.parametrize(
    ("released", "told", "again"),
    [
        ({}, Budget(20.0, 3, 8, 2), 0),
        ({1: 1, 2: 1, 3: 1}, Budget(20.0, 3, 8, 2), 0),
        ({1: 1, 2: 3, 3: 1}, Budget(20.0, 2, 8, 2, (3,)), 2),
        ({1: 1, 2: 1, 3: 1, 4: 1}, Budget(20.0, 3, 8, 2, (1,)), 1),  # stopped before the round that was lost
        ({1: 2, 4: 2, 5: 1}, Budget(20.0, 2, 8, 2, (2, 2, 1)), 4),
    ],
)
def test_every_release_counts(released: dict[int, int], told: Budget, again: int) -> None:
    config = RunConfig.make({**SETTINGS, **CENTRAL, "participation": 0.25, "rounds": 6})
    setup = prepare_setup(config, made_data((6,) * 8, dtype="float32"))
    found = privacy_summary(setup, 3, setup.initial_shared, released)["privacy"]
    assert (found["epsilon"], found["rounds"]) == (told.epsilon(1e-5)[0], told.releases)
    assert found.get("released_again", 0) == again


def test_models_of_a_repeated_round_are_not_said_to_hide_one_among_all() -> None:
    """With local noise two means of other clients' answers differ by what one client sent."""
    config = RunConfig.make({**SETTINGS, **CENTRAL, "dp_where": "client", "rounds": 6})
    setup = prepare_setup(config, made_data((6,) * 8, dtype="float32"))
    plain, twice = (privacy_summary(setup, 3, setup.initial_shared, r)["privacy"] for r in ({}, {2: 2}))
    assert "epsilon_of_models" in plain
    assert "epsilon_of_models" not in twice
    assert twice["epsilon"] == Budget(20.0, 4, 8, 8).epsilon(1e-5)[0] > plain["epsilon"]  # computed again
    for secret in (True, False):
        asked = config.model_copy(update={"engine": "messages", "dp_secret_noise": secret})
        setup = prepare_setup(asked, made_data((6,) * 8, dtype="float32"))
        kept = privacy_summary(setup, 3, setup.initial_shared, {2: 2})["privacy"]
        assert (kept["epsilon"] == plain["epsilon"]) is secret  # then each client answered once


def test_the_folder_of_a_run_whose_model_left_it_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its releases are of its own noise, and count in no other run."""
    settings: dict[str, Any] = {"clients": 3, "rounds": 1, "model": "linear", **CENTRAL, "dp_secret_noise": True}

    def lost(*_: object) -> None:
        raise OSError("the power is gone")

    monkeypatch.setattr(Loop, "_evaluate", lost)
    with pytest.raises(OSError, match="the power is gone"):
        cg.train("fedavg", "digits", out=tmp_path, **settings)
    monkeypatch.undo()
    with pytest.raises(RunError, match="already holds a run; add --resume"):
        cg.train("fedavg", "digits", out=tmp_path, **{**settings, "dp_noise": 30.0})
    assert (
        "released_again" not in cg.train("fedavg", "digits", out=tmp_path, resume=True, **settings).summary["privacy"]
    )


def test_a_run_that_was_lost_before_anything_left_it_gives_its_folder_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"clients": 3, "rounds": 1, "model": "linear", "engine": "messages", **CENTRAL}
    settings |= {"dp_where": "client", "dp_secret_noise": True}

    def lost(*_: object) -> None:
        raise OSError("the power is gone")

    monkeypatch.setattr(Loop, "_conclude", lost)
    with pytest.raises(OSError, match="the power is gone"):
        cg.train("fedavg", "digits", out=tmp_path, **settings)
    monkeypatch.undo()
    assert list(tmp_path.rglob("answer-*"))
    assert cg.train("fedavg", "digits", out=tmp_path, **settings, seed=3).summary["rounds"] == 1


@pytest.mark.parametrize("kind", [
    {"dp": "client", "dp_clip": 0.3, "dp_noise": 20.0, "dp_where": "client"},
    {"dp": "example", "dp_clip": 0.3, "dp_noise": 20.0, "options": {"head_epochs": 0}},
], ids=["client", "example"])  # fmt: skip
def test_a_client_answers_a_round_to_one_model_alone(kind: dict[str, Any], tmp_path: Path) -> None:
    """A false server that asks round 1 again with a dead model would be told the noise by itself."""
    config = RunConfig.make({"algorithm": "fedrep", "model": "linear" if kind["dp"] == "none" else "mlp", **kind})
    setup = prepare_setup(config, made_data((12, 9), dtype="float32"))
    own = replace(setup, data=part_of(setup.data, [0]), _splits={})

    def answer(folder: str, tensors: Tensors) -> torch.Tensor:
        client = MessageClient(own, 0, tmp_path / folder, noise=secret)
        sent = unpack(client.handle(pack({"kind": "train", "round": 1, "safe": 0, "since": None, "last": 0}, tensors)))[
            1
        ]
        return flat(sent) - flat({name: tensors[name] for name in sent})

    secret, real = SecretNoise(), setup.initial_shared
    dead = {n: torch.zeros_like(v) if v.ndim > 1 else torch.full_like(v, -1000.0) for n, v in real.items()}
    first = answer("a", real)
    assert torch.equal(answer("a", real), first)
    with pytest.raises(UpdateError, match="answered round 1 to other tensors, and a second answer would tell more"):
        answer("a", dead)
    assert torch.equal(answer("a", real), first)
    # Even where it would answer (another folder, the same secret), the noise is another one.
    assert abs(cosine(first, answer("b", dead))) < 0.5


def test_a_round_is_not_asked_again_of_another_head(tmp_path: Path) -> None:
    """The same model, from what the client kept of another round: its gradients, and so its answer, are others."""
    kind = {"dp": "client", "dp_clip": 0.3, "dp_noise": 20.0, "dp_where": "client"}
    setup = prepare_setup(RunConfig.make({"algorithm": "fedrep", "model": "mlp", **kind}), made_data((12, 9)))
    own = replace(setup, data=part_of(setup.data, [0]), _splits={})
    client = MessageClient(own, 0, tmp_path, noise=SecretNoise())

    def ask(round: int, last: int) -> torch.Tensor:
        about = {"kind": "train", "round": round, "safe": 0, "since": None, "last": last}
        return flat(unpack(client.handle(pack(about, setup.initial_shared)))[1])

    ask(1, 0)
    first = ask(2, 1)
    assert torch.equal(ask(2, 1), first)
    with pytest.raises(UpdateError, match="answered round 2 to other tensors"):
        ask(2, 0)
    client.answers.close()  # the run is over, and the secret of its noise may be another one from here on
    for round, last in ((1, 0), (2, 1)):
        with pytest.raises(UpdateError, match=f"answered round {round} to other tensors"):
            ask(round, last)
    ask(3, 2)


def test_a_run_that_is_said_to_be_over_gives_no_second_draw(tmp_path: Path) -> None:
    """Whoever ends a run and asks a round again, as if the end had been lost, would be answered with new noise."""
    local: dict[str, Any] = {"dp": "client", "dp_clip": 0.3, "dp_noise": 20.0, "dp_where": "client", "dp_delta": 1e-5}
    town = Town(data_of(), tmp_path / "sites")
    over(town, tmp_path / "run", **SETTINGS, **local)
    asked = [(node, letter) for node, letter, _ in town.letters if letter.kind == "ask"]
    node, letter = next((n, one) for n, one in asked if unpack(one.body)[0]["kind"] == "train")
    town.restart(node)
    ((_, answer),) = town.exchange({node: letter}, 20)
    assert isinstance(answer, Letter)
    assert "a second answer would tell more than its ε says" in unpack(answer.body)[0]["error"]
    more = over(town, tmp_path / "run", resume=True, **SETTINGS | {"rounds": 3}, **local)  # a run may go on
    assert more.summary["rounds"] == 3


@pytest.mark.parametrize("changed", [{"rounds": 7, "lr_schedule": "cosine"}, {"precision": "bf16"}])
def test_a_round_is_not_asked_again_under_other_settings(changed: dict[str, Any], tmp_path: Path) -> None:
    """A schedule that depends on the number of rounds makes another rate of each, and so another answer."""
    kind = {"dp": "client", "dp_clip": 0.3, "dp_noise": 20.0, "dp_where": "client", "rounds": 4}
    secret, data = SecretNoise(), made_data((12, 9))

    def answer(**more: Any) -> torch.Tensor:
        config = RunConfig.make({"algorithm": "fedrep", "model": "mlp", "lr_schedule": "cosine", **kind, **more})
        setup = prepare_setup(config, data)
        client = MessageClient(replace(setup, data=part_of(data, [0]), _splits={}), 0, tmp_path / "it", noise=secret)
        about = {"kind": "train", "round": 1, "safe": 0, "since": None, "last": 0}
        fields, sent = unpack(client.handle(pack(about, setup.initial_shared)))
        return torch.cat([flat(sent), torch.tensor([float(fields["loss"])])])

    first = answer()
    assert torch.equal(answer(**changed), first)
    (kept,) = (tmp_path / "it").glob("answer-*.safetensors")
    kept.unlink()
    with pytest.raises(UpdateError, match="answered round 1, and no longer has what it sent"):
        answer()


def test_an_answer_is_kept_until_its_round_is_safe(tmp_path: Path) -> None:
    kind = {"dp": "client", "dp_clip": 0.3, "dp_noise": 20.0, "dp_where": "client"}
    setup = prepare_setup(RunConfig.make({"algorithm": "fedrep", "model": "mlp", **kind}), made_data((12, 9)))
    own = replace(setup, data=part_of(setup.data, [0]), _splits={})
    client = MessageClient(own, 0, tmp_path, noise=SecretNoise())

    def ask(round: int, safe: int) -> torch.Tensor:
        about = {"kind": "train", "round": round, "safe": safe, "since": None, "last": round - 1}
        return flat(unpack(client.handle(pack(about, setup.initial_shared)))[1])

    answers = [ask(1, 0), ask(2, 0), ask(3, 0)]
    state = client.states.newest(4)
    assert state is not None
    # The server is back at the start; what was lost of the client's own state comes again as well.
    assert all(torch.equal(ask(round, 0), answers[round - 1]) for round in (1, 2, 3))
    again = client.states.newest(4)
    assert again is not None
    assert all(torch.equal(again[name], state[name]) for name in state)
    ask(4, 2)
    assert sorted(p.name for p in tmp_path.glob("answer-*")) == [f"answer-00000{r}.safetensors" for r in (3, 4)]
    with pytest.raises(RunError, match="no longer has its state of round 1"):
        ask(2, 1)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"class_weights": "balanced"}, r"--class-weights balanced counts the labels of all clients"),
        ({"feature_noise": 0.5}, r"--feature-noise mixes samples of some clients into those of others"),
    ],
)
def test_what_makes_one_client_change_the_others_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cg.train("fedavg", "digits", clients=4, rounds=1, **CENTRAL, **more)


def test_statistics_of_a_table_are_named_as_not_covered() -> None:
    frame = pd.DataFrame({"who": list("abcd") * 10, "x": range(40), "z": [1.0, 2.0] * 20, "y": ["no", "up"] * 20})
    for scaling, named in (("pooled", True), ("none", False)):
        data = cg.load_data(frame, client_column="who", target="y", scaling=scaling)
        told = cg.train("fedavg", data, rounds=1, **CENTRAL).summary["privacy"]
        assert ("--scaling pooled" in told["not_covered"]) is named


def test_who_takes_part_follows_from_the_secret(tmp_path: Path) -> None:
    """ε counts what sampling hides from clients, who know the seed."""
    settings: dict[str, Any] = {"clients": 20, "participation": 0.1, "rounds": 6, "model": "linear", **CENTRAL}
    took = []
    for name, secret in (("a", True), ("b", True), ("c", False)):
        run = cg.train("fedavg", "digits", out=tmp_path / name, dp_secret_noise=secret, **settings)
        assert sum(row["rounds"] for row in run.clients) == 12
        took.append([row["rounds"] for row in run.clients])
    by_seed = [0] * 20
    for round in range(1, 7):
        for client in sample_clients(run.config, 20, round):
            by_seed[client] += 1
    assert took[2] == by_seed
    assert took[0] != by_seed != took[1] != took[0]
    drawn = {tuple(sample_clients(run.config, 20, round, b"secret")) for round in range(1, 40)}
    assert len(drawn) > 30
    assert {len(each) for each in drawn} == {2}


def test_no_secret_stays_at_a_client_whose_head_was_tuned(tmp_path: Path) -> None:
    local: dict[str, Any] = {"dp": "client", "dp_clip": 0.3, "dp_noise": 20.0, "dp_where": "client", "dp_delta": 1e-5}
    town = Town(data_of(), tmp_path / "sites")
    over(town, tmp_path / "run", **SETTINGS, **local, finetune_epochs=1)
    assert len(list(tmp_path.rglob("begin.json"))) == 2 * len(town.folders)
    assert not list(tmp_path.rglob("noise.key"))
    assert not list(tmp_path.rglob("answer-*"))
    asked = [json.loads(path.read_text()) for path in tmp_path.rglob("asked.json")]
    assert len(asked) >= len(town.folders)
    assert {entry for one in asked for entry in one.values()} == {"over"}


def test_no_secret_stays_in_a_finished_folder(tmp_path: Path) -> None:
    local: dict[str, Any] = {
        "dp": "client",
        "dp_clip": 0.3,
        "dp_noise": 1.0,
        "dp_where": "client",
        "dp_secret_noise": True,
    }
    cg.train("fedavg", "digits", clients=3, rounds=2, model="linear", engine="messages", out=tmp_path, **local)
    assert not list(tmp_path.rglob("noise.key"))


def test_a_clients_own_folder_says_where_its_epsilon_is(tmp_path: Path) -> None:
    town = Town(data_of(), tmp_path / "sites")
    over(town, tmp_path / "run", **SETTINGS, **CENTRAL)
    told = cg.load_run(next((town.folders[0] / "models").iterdir())).summary["privacy"]
    assert "epsilon" not in told
    assert (told["rounds"], told["epsilon_in"]) == (2, "the server's summary.json")
