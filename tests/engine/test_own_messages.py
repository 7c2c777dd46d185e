"""What a user's own method sends, replies and keeps: the same in every engine, or refused by name in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from commonground.algorithms import Client, Server, Tensors, registry
from commonground.algorithms.base import prefixed, unprefixed
from commonground.models import Groups
from tests.engine.own import SIZES, Own, refused, the_same

# -- messages to single clients ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentBack(Own):
    """The server sends each client a model of its own (as pFedHN's does), under the personal tensors' names."""

    name = "sent-back"
    shared = ()
    personal = ("all",)

    def upload_state(self, initial: Tensors, groups: Groups) -> Tensors:
        return prefixed("up", initial)

    def message_to(self, server: Server, client: int) -> Tensors:
        return {name: value / (client + 1) for name, value in unprefixed("m", server.memory).items()}

    def client_update(self, client: Client, round: int) -> Tensors:
        if round == 2:
            for name, value in client.get("all").items():
                assert torch.equal(value, client.received[name])
        client.fit("all")
        return client.send(prefixed("up", client.get("all")))

    def server_update(self, server: Server, updates: Any, round: int) -> None:
        server.memory.update(prefixed("m", unprefixed("up", updates[0].tensors)))


def test_what_a_client_alone_is_sent_replaces_what_it_kept() -> None:
    the_same(SentBack())


@dataclass(frozen=True)
class SomeAlone(Own):
    """Something for those who took part before: newcomers are sent nothing, or there is nothing in the first round."""

    name = "some-alone"
    by: str = "memory"

    def message_to(self, server: Server, client: int) -> Tensors:
        if self.by == "round":
            return {} if server.round == 1 else {"own/last": server.memory[f"last/{server.round - 1}"]}
        key = f"last/{client}"
        return {"own/last": server.memory[key]} if key in server.memory else {}

    def client_update(self, client: Client, round: int) -> Tensors:
        factor = client.received["own/last"] if "own/last" in client.received else torch.tensor(1.0)
        client.fit("all")
        return client.send(client.scale(client.get("all"), 1 - 0.01 * factor))

    def server_update(self, server: Server, updates: Any, round: int) -> None:
        server.shared.update(server.mean(updates))
        for update in updates:
            key = f"last/{round if self.by == 'round' else update.client}"
            server.memory[key] = torch.tensor(float(update.client), dtype=torch.float64)


@pytest.mark.parametrize("by", ["memory", "round"])
def test_some_clients_alone_are_sent_something(by: str) -> None:
    the_same(SomeAlone(by), participation=0.5, rounds=4)


@dataclass(frozen=True)
class Answering(Own):
    """Replies to clients that wait for none, or of what they do not keep."""

    name = "answering"
    what: str = "everyone"

    def client_state(self, initial: Tensors) -> Tensors:
        return {"own/x": torch.zeros((), dtype=torch.float64)}

    def replies(self, server: Server, updates: Any) -> dict[int, Tensors]:
        clients = range(server.clients) if self.what == "everyone" else [u.client for u in updates]
        name = "own/x" if self.what == "everyone" else "own/y"
        return {client: {name: torch.ones((), dtype=torch.float64)} for client in clients}


def test_replies_are_for_participants_and_of_what_they_keep() -> None:
    refused(Answering(), "replies of own has one for client .*, which did not take part in round 1", participation=0.5)
    refused(Answering("other"), r"replies of own has a tensor 'own/y', which its clients do not keep .*'own/x'")


# -- names, types and shapes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keeping(Own):
    """State of another name, type or shape than declared."""

    name = "keeping-else"
    what: str = "name"

    def client_state(self, initial: Tensors) -> Tensors:
        return {"own/rounds": torch.tensor(0) if self.what == "type" else torch.zeros(())}

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        last = client.state["own/rounds"]
        kept = {
            "name": {"own/round": last + 1.0},
            "type": {"own/rounds": last + 0.5},
            "shape": {"own/rounds": client.class_counts},
            "wider": {"own/rounds": last.double() + 1 / 3},
            "common": {"own/rounds": torch.tensor(float(round))},
        }[self.what]
        client.keep(kept)
        return client.send("all")


def test_what_is_kept_is_what_was_declared() -> None:
    refused(Keeping("name"), r"what own keeps has a tensor 'own/round', which client_state does not declare .*rounds")
    refused(Keeping("type"), "what own keeps as 'own/rounds' is float32, and client_state declares int64")
    refused(Keeping("shape"), r"what own keeps as 'own/rounds' has the shape .*, and client_state declares \(\)")
    for what, value in (("wider", torch.tensor(1 / 3) + 1 / 3), ("common", torch.tensor(2.0))):
        found = the_same(Keeping(what))  # float32 as declared, in a run of float64
        torch.testing.assert_close(found["5/own/rounds"], value)


@dataclass(frozen=True)
class Correcting(Own):
    """A correction under a name that is mistyped."""

    name = "correcting"

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all", correction={"2.bais": client.received["2.bias"]})
        return client.send("all")


def test_corrections_are_of_the_models_tensors() -> None:
    refused(Correcting(), r"a correction of own is for a tensor '2.bais', which the model has not .*'2.bias'")


@dataclass(frozen=True)
class Measured(Own):
    """Dot products and multiples of the server's tensors under names of the method's own."""

    name = "measured"

    def server_state(self, initial: Tensors) -> Tensors:
        return {"own/p": torch.ones(6, 4, dtype=torch.float64)}  # as many rows as clients

    def client_state(self, initial: Tensors) -> Tensors:
        return {"own/dot": torch.zeros((), dtype=torch.float64), "own/p": torch.zeros(6, 4, dtype=torch.float64)}

    def client_update(self, client: Client, round: int) -> Tensors:
        p = {"p": client.received["own/p"]}
        client.fit("all")
        client.keep({"own/dot": client.dot(p, p), "own/p": client.scale(p, client.steps)["p"]})
        return client.send({**client.get("all"), **{"own/p": client.received["own/p"]}})


def test_the_servers_tensors_under_other_names() -> None:
    found = the_same(Measured(), rounds=1)
    for client, size in enumerate(SIZES):
        assert float(found[f"{client}/own/dot"]) == 24
        assert torch.equal(found[f"{client}/own/p"], torch.full((6, 4), float(-(-size // 4)), dtype=torch.float64))


# Other tests go through all that are registered.
for _method in (SentBack, SomeAlone, Answering, Keeping, Correcting, Measured):
    del registry[_method.name]
