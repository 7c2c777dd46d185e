"""A user's own local training: loops within loops, losses and penalties of each client's own, the value of a loss.

Clients are of unequal size, so that some have no batch any more where others still train, and every engine gives each
client what it would have got alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonground import Regression, train
from commonground.algorithms import Client, Server, Tensors, registry
from commonground.algorithms.base import prefixed, unprefixed
from commonground.data import FederatedDataset
from commonground.errors import ModelError
from tests.engine.own import SIZES, Own, made, net, ran, refused, the_same

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


def test_random_layers_and_images_draw_by_each_clients_own_count() -> None:
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


class Whole(Regression):
    """A task whose loss is the mean of a batch, and not one of each row."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return (output - y).square().mean()


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_task_of_ones_own_gives_a_loss_for_each_row(engine: str) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    data = FederatedDataset.from_arrays([(x[:30], x[:30, 0], x[30:], x[30:, 0])] * 2, task=Whole())
    with pytest.raises(ModelError, match=r"the loss of the task 'regression' must give one number for each of 3 rows"):
        train("fedavg", data, rounds=1, engine=engine)


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
for _method in (Inside, SideBySide, Pulled, TakingAlong, Shaped, Clustered):
    del registry[_method.name]
