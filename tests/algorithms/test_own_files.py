"""Algorithms as users write them: groups by pattern, and what a file may not say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from torch import nn

import commonground as cg
from commonground.algorithms import Algorithm, Client, Tensors, registry
from commonground.cli import main
from commonground.errors import ConfigError, ModelError
from tests.helpers import ENGINES, assert_same_run, made_data, own, seeded, train_whole


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def net() -> nn.Module:
    return seeded(chain)


@dataclass(frozen=True)
class ByPattern(Algorithm):
    """The middle layer stays with its client."""

    shared = ("0", "4.*")
    personal = ("2.*",)

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("2.*", epochs=2)
        client.fit(("0", "4.weight"))
        return client.send(("0", "4.*"))


@dataclass(frozen=True)
class ByName(Algorithm):
    """The same in groups that the model names."""

    shared = ("outer",)
    personal = ("middle",)

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("middle", epochs=2)
        client.fit("trained")
        return client.send("outer")


@dataclass(frozen=True)
class Outer(Algorithm):
    """Everything is shared, in two patterns; a text is as good as a tuple of one."""

    shared = "*"  # type: ignore[assignment]

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("*")
        return client.send("*")


for _algorithm in (ByPattern, ByName, Outer):
    own(_algorithm)


@pytest.mark.engine
@pytest.mark.parametrize("engine", ENGINES)
def test_groups_can_be_patterns(engine: str) -> None:
    data = made_data()
    named = net()
    named.groups = {"middle": ["2"], "outer": ["0", "4"], "trained": ["0", "4.weight"], "head": ["4"]}  # type: ignore[assignment]
    settings = {"engine": engine, "dtype": "float64"}
    whole = train_whole(ByPattern(), data, model=net(), **settings)
    assert set(whole.personal[0]) == {"2.weight", "2.bias"}
    assert set(whole.run.shared) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    assert_same_run(whole, train_whole(ByName(), data, model=named, **settings), 0.0)
    serial = train_whole(ByPattern(), data, model=net(), **settings | {"engine": "serial"})
    assert_same_run(whole, serial, 0.0 if engine in ("processes", "messages") else 1e-10)


def test_all_tensors_by_a_pattern_are_a_global_model() -> None:
    data = made_data(dtype=np.float32)
    run = cg.train(Outer(), data, model=net(), rounds=2, lr=0.1, engine="serial")
    fedavg = cg.train("fedavg", data, model=net(), rounds=2, lr=0.1, engine="serial")
    assert run.global_accuracy == fedavg.global_accuracy
    assert run.summary["weights_sha256"] == fedavg.summary["weights_sha256"]
    assert run.model().training is False


def test_a_pattern_that_matches_nothing_or_not_everything() -> None:
    @dataclass(frozen=True)
    class Nothing(ByPattern):
        personal = ("3.*",)

    @dataclass(frozen=True)
    class Part(ByPattern):
        personal = ("2.weight",)

    with pytest.raises(ModelError, match=r"the model has no group '3\.\*'; it has all, body"):
        cg.train(own(Nothing)(), made_data(), model=net(), rounds=1)
    with pytest.raises(ModelError, match=r"'2\.bias' is in none of the groups '0', '4\.\*'"):
        cg.train(own(Part)(), made_data(), model=net(), rounds=1)


@pytest.mark.parametrize("variable", ["name", "title", "source", "shared", "personal", "may_stay_silent"])
def test_a_class_variable_with_an_annotation_is_refused(variable: str) -> None:
    with pytest.raises(ConfigError, match=f"Annotated writes '{variable}' with an annotation, .*; write {variable} ="):
        type("Annotated", (ByPattern,), {variable: "x", "__annotations__": {variable: str}})


def test_class_variables_may_be_said_to_be_some() -> None:
    @dataclass(frozen=True)
    class Declared(ByPattern):
        title: ClassVar[str] = "declared"

    assert Declared.options() == {}


FILE = """
from dataclasses import dataclass
from commonground import Algorithm

@dataclass(frozen=True)
class Mine(Algorithm):
    name: str = "mine"
    title = "Mine"
    shared = ("all",)

    def client_update(self, client, round):
        client.fit("all")
        return client.send("all")
"""


def test_a_file_with_an_annotated_name_says_so_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    assert main(["train", f"{file}:Mine", "--clients", "3", "--rounds", "1", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"in {file}, line 6: the algorithm Mine writes 'name' with an annotation" in said
    assert said.count("\n") == 1
    assert "mine" not in registry


HALVES = {
    "no client_update": (
        "def client_updates(self, client, round): ...",
        "has no def client_update(self, client, round)",
    ),
    "too few": ("def client_update(self, client): ...", "client_update(self, client) in place of def client_update"),
    "server": (
        "def client_update(self, client, round): ...\n    def server_update(self, server): ...",
        "server_update(self, server) in place of def server_update(self, server, updates, round)",
    ),
    "returns nothing": (
        "def client_update(self, client, round):\n        client.fit('body')",
        "client_update of Mine gives nothing in place of what a client sends, tensors by name; let it end with: return "
        "client.send('body')",
    ),
    "returns names": (
        "def client_update(self, client, round):\n        return ['body']",
        "client_update of Mine gives a list in place",
    ),
}


@pytest.mark.parametrize("engine", ["serial", "batched", "messages"])
@pytest.mark.parametrize("wrong", HALVES)
def test_a_half_of_a_round_of_another_form_is_one_sentence(
    wrong: str, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, says = HALVES[wrong]
    head = "from commonground.algorithms import Algorithm\n\n\nclass Mine(Algorithm):\n    shared = ('body',)\n"
    (tmp_path / "mine.py").write_text(f"{head}    personal = ('head',)\n    title = 'Mine'\n\n    {code}\n")
    words = ["train", f"{tmp_path / 'mine.py'}:Mine", "--rounds", "1", "--engine", engine]
    assert main([*words, "--quiet", "--out", str(tmp_path / "run")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert says in told
    assert "Traceback" not in told
