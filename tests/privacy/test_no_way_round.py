"""Ways round the mechanism: what would be sent, trained or told without the noise that ε counts is refused or named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import commonground as cg
from commonground.algorithms import Algorithm, Client, Server, Tensors, Update
from commonground.config import RunConfig
from commonground.engine.observer import Observer
from commonground.errors import ConfigError, ModelError
from commonground.network.answering import Answering
from commonground.network.limits import Limits
from commonground.sklearn import FederatedClassifier
from tests.helpers import made_data, own
from tests.language import token_data

CLIENT: dict[str, Any] = {"dp": "client", "dp_clip": 0.1, "dp_noise": 1.0, "dp_delta": 1e-3, "engine": "serial"}
EXAMPLE: dict[str, Any] = {**CLIENT, "dp": "example"}


@own
@dataclass(frozen=True)
class OnlyBeside(Algorithm):
    """Sends no part of the model, and a tensor beside it."""

    personal = ("all",)
    declared: bool = True

    def server_state(self, initial: Tensors) -> Tensors:
        return {"own/sum": torch.zeros(3)} if self.declared else {}

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        first = next(iter(client.get("all").values()))
        return client.send({"own/sum": 100 + 0 * first.flatten()[:3]})


@own
@dataclass(frozen=True)
class LaterSends(Algorithm):
    """Is silent in its first round."""

    shared = ("all",)
    may_stay_silent = True
    not_private = ""

    def sends(self, round: int) -> tuple[str, ...]:
        return () if round == 1 else ("all",)

    def is_silent(self, server: Server, rounds: int) -> bool:
        return server.round == 1

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        return client.send({} if round == 1 else "all")

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        if updates[0].tensors:
            super().server_update(server, updates, round)


@own
@dataclass(frozen=True)
class Grows(Algorithm):
    """Trains longer the more rounds a client has had, or has been told; or by the round, which everybody knows."""

    shared = ("all",)
    not_private = ""
    by: str = "state"

    def client_state(self, initial: Tensors) -> Tensors:
        return {"own/rounds": torch.zeros((), dtype=torch.int64)} if self.by == "state" else {}

    def server_state(self, initial: Tensors) -> Tensors:
        return {"own/epochs": torch.ones(())} if self.by == "server" else {}

    def client_update(self, client: Client, round: int) -> Tensors:
        if self.by == "state":
            epochs = 1 + int(client.state["own/rounds"].max())
            client.keep({"own/rounds": client.state["own/rounds"] + 1})
        else:
            epochs = int(client.received["own/epochs"]) if self.by == "server" else round
        client.fit("all", epochs=epochs)
        return client.send("all")

    def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
        super().server_update(server, updates, round)
        if self.by == "server":
            server.shared["own/epochs"] = server.shared["own/epochs"] + 1


def test_what_is_sent_beside_the_model_is_cut_and_hidden() -> None:
    run = cg.train(OnlyBeside(), made_data(dtype=np.float32), model="mlp", rounds=2, **CLIENT)
    assert run.summary["privacy"]["epsilon"] > 1
    assert float(run.trained.shared["own/sum"].abs().max()) < 5  # of 100, by a clip norm of 0.1


def test_what_is_not_declared_is_not_sent() -> None:
    with pytest.raises(ModelError, match=r"sends 'own/sum', and its hooks \(sends, .*\) say that nothing is sent"):
        cg.train(OnlyBeside(declared=False), made_data(dtype=np.float32), model="mlp", rounds=2, **CLIENT)


@pytest.mark.parametrize("private", [CLIENT, EXAMPLE])
def test_one_silent_round_takes_no_noise_from_the_others(private: dict[str, Any]) -> None:
    data = made_data(dtype=np.float32)
    run, plain = (cg.train(LaterSends(), data, model="mlp", rounds=2, **more) for more in (private, {}))
    assert run.summary["privacy"]["epsilon"] > 1
    assert not any(torch.equal(run.trained.shared[name], value) for name, value in plain.trained.shared.items())


@pytest.mark.parametrize("engine", ["serial", "batched", "messages"])
@pytest.mark.parametrize("by", ["state", "server"])
def test_training_that_was_not_counted_is_refused(by: str, engine: str) -> None:
    asked = EXAMPLE | {"engine": engine}
    said = "grows goes over a client's examples up to 2 times in round 2, and the ε of --dp example counts 1;"
    with pytest.raises(ConfigError, match=said):
        cg.train(Grows(by=by), made_data(dtype=np.float32), model="mlp", rounds=3, **asked)


def test_training_that_follows_from_the_round_is_counted() -> None:
    run = cg.train(Grows(by="round"), made_data(dtype=np.float32), model="mlp", rounds=3, **EXAMPLE)
    assert run.summary["privacy"]["passes"] == 1 + 2 + 3


def test_noise_and_epsilon_have_to_fit_for_one_client_as_well() -> None:
    data = made_data((20,), dtype=np.float32)
    with pytest.raises(ConfigError, match=r"--dp-noise 0.2 is not the noise of --dp-epsilon 1 in 2 passes"):
        cg.train("fedavg", data, model="mlp", rounds=2, **EXAMPLE | {"dp_noise": 0.2, "dp_epsilon": 1.0})


@pytest.mark.parametrize("private", [CLIENT, EXAMPLE])
def test_noise_of_features_that_data_bring_is_refused(private: dict[str, Any]) -> None:
    data = cg.data.add_feature_noise(made_data(dtype=np.float32), 0.5, 0)
    with pytest.raises(ConfigError, match="--feature-noise"):
        cg.train("fedavg", data, model="mlp", rounds=1, **private)


@pytest.mark.parametrize("few", ["drop", "pool", "shared"])
def test_clients_with_few_rows_that_data_left_out_are_refused(few: str) -> None:
    table = pd.DataFrame({"who": list("abc") * 10 + ["d"] * 2, "x": np.arange(32.0), "y": ["no", "up"] * 16})
    data = cg.load_data(table, client_column="who", target="y", few_rows=few, min_rows=5)
    with pytest.raises(ConfigError, match=f"--few-rows {few} makes clients of those that have enough rows"):
        cg.train("fedavg", data, rounds=1, **CLIENT)
    cg.train("fedavg", data, rounds=1)


def test_the_length_of_an_update_does_not_decide_whether_a_client_counts() -> None:
    central = RunConfig.make({"algorithm": "fedavg", "dp": "client", "dp_clip": 1.0, "dp_noise": 1.0})
    with pytest.raises(ConfigError, match="--max-update-norm refuses updates by their length"):
        Limits(max_norm=0.5).check(central)
    Limits().check(central)
    Limits(max_norm=0.5).check(central.model_copy(update={"dp_where": "client"}))  # what comes is hidden already


@pytest.mark.parametrize("private", [CLIENT, CLIENT | {"dp_where": "client"}])
def test_a_note_of_growth_names_no_update_that_the_servers_noise_hides(private: dict[str, Any]) -> None:
    heard: list[str] = []

    class Hears(Observer):
        def begin(self, setup: Any, engine: str, done: int) -> None: ...

        def round(self, row: Any) -> None: ...

        def end(self) -> None: ...

        def note(self, text: str) -> None:
            heard.append(text)

    settings = private | {"dp_clip": 20000.0, "dp_noise": 2.0}
    cg.train("fedavg", made_data(dtype=np.float32), rounds=1, model="linear", observer=Hears(), **settings)
    (note,) = (text for text in heard if "grew" in text or "grow" in text or "update" in text)
    assert ("whose is not told under --dp client" in note) is ("dp_where" not in private)
    assert ("of client" in note) is ("dp_where" in private)


def test_exports_of_private_runs_do_not_name_the_seed(tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "private": CLIENT}
    for name, private in kinds.items():
        data = made_data(dtype=np.float32)
        run = cg.train("ffa-lora", data, rounds=2, model="mlp", seed=4711, out=tmp_path / name, **private)
        cg.export_model(run, tmp_path / f"{name}-out", client=1)
        settings = json.loads((tmp_path / f"{name}-out" / "config.json").read_text("utf-8"))["settings"]
        assert settings.get("seed") == (None if private else 4711)
        exported = cg.load_exported(tmp_path / f"{name}-out")
        np.testing.assert_array_equal(exported.predict(data.x_test[:4]), run.predict(data.x_test[:4], 1))


def test_of_texts_the_longest_is_not_told_where_privacy_is_demanded(tmp_path: Path) -> None:
    told = []
    for longest in (11, 12):
        data = token_data(1, longest=longest)
        data = replace(data, origin=replace(data.origin, read={"max_length": 16}))
        for demand in (None, "client"):
            hello = json.loads(Answering(data, "a", tmp_path, demand=demand).hello())
            told.append(hello["fields"][0][2][0] - 1)
    assert told == [11, 16, 12, 16]


def test_what_else_tells_of_rows_is_named(tmp_path: Path) -> None:
    settings = {name: value for name, value in CLIENT.items() if name != "engine"}
    x, y, who = np.arange(40.0).reshape(20, 2), np.arange(20) % 2, np.arange(20) // 5
    model = FederatedClassifier("fedavg", standardize=False, settings=settings, rounds=1).fit(x / 40, y, who)
    assert "; classes, which are of all clients' rows together" in model.run_.summary["privacy"]["not_covered"]
    data = made_data(dtype=np.float32)
    cg.train("fedavg", data, model="mlp", rounds=1, out=tmp_path / "before")
    starts: list[dict[str, Any]] = [{}, {"init_from": str(tmp_path / "before")}]
    runs = [cg.train("fedavg", data, model="mlp", rounds=1, **CLIENT, **start) for start in starts]
    said = [run.summary["privacy"]["not_covered"] for run in runs]
    assert all("the SHA-256 of all data" in text for text in said)
    assert ["the weights it begins with (--init-from)" in text for text in said] == [False, True]
    table = pd.DataFrame({"who": list("abcd") * 10, "v": np.linspace(0, 1, 40), "y": ["no", "up"] * 20})
    by_bounds = cg.load_data(table, client_column="who", target="y", scaling="bounds:v=0:1")
    alone = cg.load_data(table.drop(columns="who"), 4, target="y", scaling="bounds:v=0:1")
    for data, rows in ((by_bounds, False), (alone, True)):
        text = cg.train("fedavg", data, rounds=1, **EXAMPLE).summary["privacy"]["not_covered"]
        assert "whether any of their cells is empty" in text
        assert ("which rows are test rows" in text) is rows
