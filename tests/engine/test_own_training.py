"""A user's own local training: loops within loops, losses and penalties of each client's own, messages to single ones.

Clients are of unequal size, so that some have no batch any more where others still train, and every engine gives each
client what it would have got alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import commonground as cg
from commonground.algorithms import Algorithm, Client, Server, Tensors, registry
from commonground.algorithms.base import prefixed, unprefixed
from commonground.data import FederatedDataset
from commonground.engine import Run
from commonground.errors import ModelError
from commonground.models import Groups

ENGINES = ("serial", "processes", "messages", "batched")
SIZES = (7, 31, 12, 19, 5, 23)


def made(sizes: tuple[int, ...] = SIZES) -> FederatedDataset:
    rng = np.random.default_rng(0)
    parts: list[Any] = []
    for size in sizes:
        x = rng.normal(size=(size + 6, 5)).astype(np.float32)
        y = rng.permutation(np.arange(size + 6) % 3)
        parts.append((x[:size], y[:size], x[size:], y[size:]))
    return FederatedDataset.from_arrays(parts)


def net(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(6)] if norm else []
    return nn.Sequential(nn.Linear(5, 6), *middle, nn.ReLU(), nn.Linear(6, 3))


def ran(method: Algorithm, engine: str, **more: Any) -> Run:
    more = {"rounds": 2, "lr": 0.1, "batch_size": 4, "dtype": "float64", **more}
    return cg.train(method, more.pop("data", made()), model=more.pop("model", net()), engine=engine, **more)


def everything(run: Run) -> dict[str, Tensor]:
    own = {f"{client}/{name}": value for client in range(len(run.clients)) for name, value in
           run.trained.own(client).items()}  # fmt: skip
    loss = torch.tensor([row["train_loss"] for row in run.history], dtype=torch.float64)
    return {**run.shared, **own, "loss": loss}


def the_same(method: Algorithm, **more: Any) -> dict[str, Tensor]:
    """What all engines give alike."""
    first, *others = (everything(ran(method, engine, **more)) for engine in ENGINES)
    for found in others:
        assert set(found) == set(first)
        for name, value in first.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)
    return first


def refused(method: Algorithm, says: str, engines: tuple[str, ...] = ENGINES, **more: Any) -> None:
    for engine in engines:
        with pytest.raises(ModelError, match=says):
            ran(method, engine, **more)


class Own(Algorithm):
    """Averaging, of which the tests change a part."""

    title = "own"
    source = "a test"
    shared: ClassVar[tuple[str, ...]] = ("all",)

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("all")
        return client.send("all")


# -- loops within loops -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inside(Own):
    """Steps of the head, or of all, for every step of the body; then a pass, whose order hangs on the calls before."""

    name = "inside"
    by: str = "fit"
    passes: int = 1

    def client_state(self, initial: Tensors) -> Tensors:
        return {"own/steps": torch.zeros(2, dtype=torch.float64)}

    def client_update(self, client: Client, round: int) -> Tensors:
        for number, batch in enumerate(client.batches(epochs=1)):
            client.step(client.gradient("body", batch))
            if self.by == "fit":
                client.fit("head", steps=1 + number % 3, weight_decay=0.1)
            else:
                for small in client.batches(steps=2, batch_size=2):
                    client.step(client.gradient("all", small))
        inner = torch.as_tensor(client.steps)
        if self.passes:
            client.fit("all", epochs=self.passes)
        kept = torch.stack([inner, torch.as_tensor(client.steps)], -1)
        client.keep({"own/steps": kept})
        return client.send("all")


@dataclass(frozen=True)
class SideBySide(Own):
    """First-order MAML: a step on one batch, its gradient on another, as long as there are both."""

    name = "side-by-side"

    def client_update(self, client: Client, round: int) -> Tensors:
        for support, query in zip(
            client.batches(epochs=1, batch_size=6), client.batches(epochs=1, batch_size=4), strict=False
        ):
            start, gradient = client.get("all"), client.gradient("all", support)
            at = {name: start[name] - 0.05 * value for name, value in gradient.items()}
            client.step(client.gradient("all", query, at=at))
        for batch in client.batches(steps=2):  # nothing is left of those before
            client.step(client.gradient("all", batch))
        return client.send("all")


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch-norm"])
@pytest.mark.parametrize("by", ["fit", "batches"])
def test_training_inside_a_loop_over_batches(by: str, norm: bool) -> None:
    sizes = (8, 32, 12, 20, 4, 24) if norm else SIZES  # no batch of a single sample
    the_same(Inside(by, passes=0), data=made(sizes), model=net(norm))  # what is told is the last loss of the loop
    found = the_same(Inside(by), data=made(sizes), model=net(norm))
    inner = [int(found[f"{client}/own/steps"][0]) for client in range(len(sizes))]
    if by == "fit":  # of a client's last batch, wherever the others are
        assert inner == [1 + (-(-size // 4) - 1) % 3 for size in sizes]


def test_loops_over_batches_side_by_side() -> None:
    the_same(SideBySide())


def test_random_layers_and_images_draw_by_each_clients_own_count(tmp_path: Any) -> None:
    torch.manual_seed(0)
    drops = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 3))
    the_same(Inside("batches"), model=drops)


# -- losses and penalties ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pulled(Own):
    """The server's point for each client, in a loss or in a penalty, and how much the client trained."""

    name = "pulled"
    where: str = "loss"

    def message_to(self, server: Server, client: int) -> Tensors:
        return {"own/point": torch.full((6,), float(client), dtype=torch.float64)}

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("head", epochs=1)
        task = client.task

        def pull(weight: Tensor) -> Tensor:
            return (weight.mean(0) - client.received["own/point"]).square().sum() / client.steps

        if self.where == "loss":
            client.fit("all", loss=lambda out, y: task.loss(out.logits, y) + pull(out.own["2.weight"]))
        else:
            client.fit("all", penalty=lambda own, received: pull(own["2.weight"]))
        return client.send("all")


@pytest.mark.parametrize("where", ["loss", "penalty"])
def test_a_loss_asks_the_client_for_what_is_its_own(where: str) -> None:
    the_same(Pulled(where))


class Near:
    """A penalty that is an object."""

    def __init__(self, to: Tensors) -> None:
        self.to = to

    def __call__(self, own: Tensors, received: Tensors) -> Tensor:
        return torch.stack([(own[name] - value).square().sum() for name, value in self.to.items()]).sum()

    def pull(self, own: Tensors, received: Tensors) -> Tensor:
        return self(own, received)


@dataclass(frozen=True)
class TakingAlong(Own):
    """A penalty or loss with something of all clients in it, where they are trained together."""

    name = "taking-along"
    what: str = "steps"

    def message_to(self, server: Server, client: int) -> Tensors:
        return {"own/point": torch.full((6,), float(client), dtype=torch.float64)}

    def client_update(self, client: Client, round: int) -> Tensors:
        client.fit("head", epochs=1)
        task, steps, point = client.task, client.steps, client.received["own/point"]
        norm = client.dot(client.get("head"), client.get("head")) * 2
        if self.what == "steps":
            client.fit("all", penalty=lambda own, received: own["2.bias"].square().sum() / steps)
        elif self.what == "point":
            client.fit("all", loss=lambda out, y: task.loss(out.logits, y) + (out.own["2.weight"][0] - point).sum())
        elif self.what == "computed":
            client.fit("all", penalty=lambda own, received: own["2.bias"].square().sum() * norm)
        elif self.what == "object":
            client.fit("all", penalty=Near(client.get("head")))
        else:
            client.fit("all", penalty=Near(client.get("head")).pull)
        return client.send("all")


@pytest.mark.parametrize("what", ["steps", "point", "computed", "object", "method"])
def test_what_is_of_all_clients_is_refused_and_not_broadcast(what: str) -> None:
    ran(TakingAlong(what), "serial")
    refused(TakingAlong(what), "a tensor of all 6 clients|6 clients are trained together", ("batched",))


@dataclass(frozen=True)
class Shaped(Own):
    """A loss or penalty of another shape than it should have."""

    name = "shaped"
    what: str = "mean"

    def client_update(self, client: Client, round: int) -> Tensors:
        task = client.task
        if self.what == "mean":
            client.fit("all", loss=lambda out, y: task.loss(out.logits, y).mean())
        elif self.what == "table":
            client.fit("all", loss=lambda out, y: task.loss(out.logits, y) * out.logits[:, :1])
        elif self.what == "column":
            client.fit("all", penalty=lambda own, received: own["2.bias"].sum(0, keepdim=True))
        else:
            client.gradient("all", penalty=lambda own, received: own["2.bias"])
        return client.send("all")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("mean", r"the method's loss must give one number for each of \d rows, not a tensor of shape \(\)"),
        ("table", r"the method's loss must give one number for each of (\d) rows, not a tensor of shape \(\1, \1\)"),
        ("column", r"the method's penalty must give one number, not a tensor of shape \(1,\)"),
        ("gradient", r"the method's penalty must give one number, not a tensor of shape \(3,\)"),
    ],
)
def test_losses_and_penalties_have_one_shape(what: str, says: str) -> None:
    refused(Shaped(what), says)


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


# -- the value of a loss ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clustered(Own):
    """IFCA (Ghosh et al. 2020): the client takes that of two models whose loss on its data is the smaller one."""

    name = "clustered"

    def server_state(self, initial: Tensors) -> Tensors:
        return prefixed("other", {n: value if "running" in n else -value for n, value in initial.items()})

    def client_state(self, initial: Tensors) -> Tensors:
        return {"own/losses": torch.zeros(3, dtype=torch.float64)}

    def client_update(self, client: Client, round: int) -> Tensors:
        other = unprefixed("other", client.received)
        here, there = client.mean_loss(), client.mean_loss(at=other)
        task = client.task
        twice = client.mean_loss(loss=lambda out, y: 2 * task.loss(out.logits, y))
        first = next(iter(client.batches(steps=1)))
        part = client.mean_loss(first)
        client.keep({"own/losses": torch.stack([here, there, twice - here + 0 * part], -1)})
        takes = (there < here).double()  # one number per client, to choose without a branch
        mixed = {name: value - client.received[name] for name, value in other.items()}
        client.set({n: client.received[n] + value for n, value in client.scale(mixed, takes).items()})
        client.fit("all")
        return client.send({**client.get("all"), **prefixed("other", client.get("all"))})


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch-norm"])
def test_models_are_chosen_by_their_loss(norm: bool) -> None:
    sizes = (8, 32, 12, 20, 4, 24) if norm else SIZES
    data, start = made(sizes), net(norm).double()
    found = the_same(Clustered(), data=data, model=net(norm), rounds=1)
    for client in range(len(sizes)):
        rows = data.train_indices(client)
        x, y = torch.from_numpy(data.x_train[rows]).double(), torch.from_numpy(data.y_train[rows])
        other = net(norm).double()
        other.load_state_dict({n: v if "running" in n or "tracked" in n else -v for n, v in start.state_dict().items()})
        with torch.no_grad():
            here, there = (nn.functional.cross_entropy(one.eval()(x), y) for one in (start, other))
        kept = found[f"{client}/own/losses"]
        torch.testing.assert_close(kept, torch.stack([here, there, here]))


def test_a_loss_is_that_of_a_test_and_not_of_a_training_step() -> None:
    torch.manual_seed(0)
    drops = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 3))
    found = the_same(Clustered(), model=drops, rounds=1)
    start, data = drops.double().eval(), made()
    for client in range(len(SIZES)):
        rows = data.train_indices(client)
        x, y = torch.from_numpy(data.x_train[rows]).double(), torch.from_numpy(data.y_train[rows])
        torch.testing.assert_close(found[f"{client}/own/losses"][0], nn.functional.cross_entropy(start(x), y).detach())


# Other tests go through all that are registered.
for _method in (
    Inside, SideBySide, Pulled, TakingAlong, Shaped, SentBack, SomeAlone, Answering, Keeping, Correcting, Measured,
    Clustered,
):  # fmt: skip
    del registry[_method.name]
