"""Hooks of a user's method that give something else than they should: every engine says so in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import commonground as cg
from commonground.algorithms import Algorithm, Client, Server, Tensors, registry
from commonground.errors import CommonGroundError, ConfigError, ModelError
from commonground.models import Groups
from tests.helpers import TwoLayer, made_data, own, seeded

ENGINES = ("serial", "batched", "messages")


@own
@dataclass(frozen=True)
class Hooks(Algorithm):
    """A shared body and a personal head, of which one hook gives something else."""

    shared = ("body",)
    personal = ("head",)
    not_private = "it is spoilt"
    what: str = ""

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all", penalty=lambda own, received: {"whole": 0, "penalty": 0.5}.get(self.what, 0.0))
        sent = client.send("body")
        if self.what == "arrays":
            return {name: value.numpy() for name, value in sent.items()}  # type: ignore[misc]
        if self.what == "NaN":
            return {name: value * torch.nan for name, value in sent.items()}
        return {**sent, "own/tau": torch.ones(1)} if self.what == "no axis" else sent

    def upload_state(self, initial: Tensors, groups: Groups) -> Tensors:
        return {"own/tau": torch.ones(1)} if self.what == "no axis" else {}

    def server_update(self, server: Server, updates: Any, round: int) -> None:
        mean = server.mean(updates)
        if self.what == "server_update":
            return mean  # type: ignore[return-value]
        server.shared.update({name: mean[name] for name in server.shared})
        return None

    def personal_model(self, shared: Tensors, own: Tensors) -> Tensors:
        given: dict[str, Any] = {"forgotten": dict(shared), "unknown": {**own, "headd": torch.ones(1)}, "none": None}
        given["shape"] = {name: value[..., :1] for name, value in own.items()}
        return given.get(self.what, dict(own))

    def held_part(self, name: str, client: int) -> tuple[slice, ...]:
        given: dict[str, Any] = {"part": 3, "long part": (slice(1), slice(1), slice(1))}
        return given.get(self.what, ())

    def client_state(self, initial: Tensors) -> Tensors:
        return [1] if self.what == "client_state" else {}  # type: ignore[return-value]

    def server_state(self, initial: Tensors) -> Tensors:
        return {"q/w": "no"} if self.what == "server_state" else {}  # type: ignore[dict-item]

    def replies(self, server: Server, updates: Any) -> dict[int, Tensors]:
        given: dict[str, Any] = {"replies": None, "reply": {updates[0].client: 1}}
        return given.get(self.what, {})

    def extend_model(self, model: nn.Module, groups: Groups) -> nn.Module:
        return None if self.what == "extend_model" else model  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("server_update", "server_update of hooks returns a dict, of which nothing would come; let it change server."),
        ("forgotten", "personal_model of hooks leaves out the personal tensor 'head.weight', of which"),
        ("unknown", "personal_model of hooks gives a tensor 'headd', which the model has not"),
        ("none", "personal_model of hooks gives nothing in place of a dict of tensors by name"),
        ("shape", "personal_model of hooks gives 'head.weight' as torch.float32 of shape (3, 1) instead of torch."),
        ("arrays", "client_update of hooks gives for 'first.weight' no tensor, but an ndarray: array([["),
        (
            "NaN",
            "its training loss was finite; look at what client_update of hooks computes before trying a smaller --lr",
        ),
        (
            "part",
            "held_part of hooks gives 3 for 'first.weight'; let it give a tuple of slices, at most one for each axis",
        ),
        (
            "long part",
            "held_part of hooks gives (slice(None, 1, None), slice(None, 1, None), slice(None, 1, None)) for",
        ),
        ("client_state", "client_state of hooks gives a list in place of a dict of tensors by name"),
        ("server_state", "server_state of hooks gives for 'q/w' no tensor, but a str: 'no'"),
        ("replies", "replies of hooks gives nothing in place of a dict of tensors by name for each client"),
        ("reply", "replies of hooks gives an int for client 0 in place of a dict of tensors by name"),
        ("extend_model", "extend_model of hooks gives nothing in place of a module; let it return"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_hook_that_gives_something_else_is_named(what: str, says: str, engine: str) -> None:
    cg.train(Hooks(), made_data(dtype=np.float32), model=seeded(TwoLayer), rounds=1, engine=engine)  # all is well
    with pytest.raises(CommonGroundError) as raised:
        cg.train(Hooks(what=what), made_data(dtype=np.float32), model=seeded(TwoLayer), rounds=1, engine=engine)
    assert says in str(raised.value)


def test_a_penalty_that_is_off_may_be_a_plain_number() -> None:
    """Another one is refused: a constant has no gradient, and would train nothing without a word."""
    data = made_data(dtype=np.float32)
    runs = [cg.train(Hooks(what="whole"), data, model=seeded(TwoLayer), rounds=1, engine=e) for e in ENGINES]
    plain = cg.train(Hooks(), data, model=seeded(TwoLayer), rounds=1, engine="serial")
    for run in runs:
        torch.testing.assert_close(run.shared, plain.shared)
        assert run.history[0]["train_loss"] == pytest.approx(plain.history[0]["train_loss"])
    for engine in ENGINES:
        with pytest.raises(CommonGroundError, match="penalty does not depend on the tensors it is called with"):
            cg.train(Hooks(what="penalty"), data, model=seeded(TwoLayer), rounds=1, engine=engine)


@pytest.mark.parametrize("name", ["", " ", "a,b", "a:b", "a=b", 3])
def test_a_name_is_one_that_can_be_written_in_a_command(name: Any) -> None:
    with pytest.raises(ConfigError, match="a name is text without commas, colons, equals signs and line breaks"):
        type("Named", (Hooks,), {"name": name})
    assert name not in registry


def test_what_stacked_clients_send_has_them_as_its_first_axis() -> None:
    data = made_data(dtype=np.float32)
    cg.train(Hooks(what="no axis"), data, model=seeded(TwoLayer), rounds=1, engine="serial")
    said = r"client_update of hooks sends the tensor 'own/tau' of shape \(1,\), where 4 clients train at once and each"
    with pytest.raises(ModelError, match=said):
        cg.train(Hooks(what="no axis"), data, model=seeded(TwoLayer), rounds=1, engine="batched")
