"""Tensors that all clients have in common, side by side with those that have a row for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import commonground as cg
from commonground.algorithms import Algorithm, Client, Tensors, registry
from commonground.engine.clients.common import Common, plain
from tests.engine.own import SIZES, the_same
from tests.engine.own import made as clients_of
from tests.engine.own_methods import ENGINES, Own, made, net


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    yield
    registry.pop("spoilt", None)


def choosing() -> Algorithm:
    @dataclass(frozen=True)
    class Choosing(Own):
        """Mixes its own and the received tensors by which of them is better, a factor in double precision."""

        name = "spoilt"

        def client_update(self, client: Client, round: int) -> Tensors:
            client.fit("all")
            factor = (client.mean_loss() < client.mean_loss(at=client.received)).double() * 0.7
            own, other = client.scale(client.get("all"), factor), client.scale(client.received, 1 - factor)
            client.set({name: (own[name] + other[name]).double() for name in own})
            client.fit("head")
            return client.send("all")

    return Choosing()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_factor_of_another_number_type_changes_no_tensors_type(engine: str) -> None:
    run = cg.train(choosing(), made(), model=net(), rounds=2, engine=engine)
    assert {value.dtype for value in run.shared.values()} == {torch.float32}


def renaming() -> Algorithm:
    @dataclass(frozen=True)
    class Renaming(Own):
        """Computes something under a name of its own with what was received."""

        name = "spoilt"

        def client_update(self, client: Client, round: int) -> Tensors:
            client.fit("all")
            twice = client.scale({"twice": client.received["0.weight"] * 2}, 1 / client.steps)["twice"]
            weight = client.get("0.weight")["0.weight"]
            client.set({"0.weight": weight + 0.1 * twice})
            return client.send("all")

    return Renaming()


@pytest.mark.parametrize("clients", [5, 6])
def test_what_is_computed_of_common_tensors_is_common_whatever_its_shape(clients: int) -> None:
    """0.weight is [6, 5]: of six clients side by side, of unequal size, its rows look like theirs."""
    the_same(renaming(), data=clients_of(SIZES[:clients]))


def test_common_tensors_know_it() -> None:
    common, stacked = torch.ones(4, 5).as_subclass(Common), torch.full((4, 5), 2.0)
    for made_of_it in (
        common * 2,
        1 / common,
        common + torch.tensor(3.0),
        common.sum(0),
        torch.stack([common, common]),
    ):
        assert type(made_of_it) is Common
    assert all(type(part) is Common for part in (*common.split(2), common.max(0).values))
    for mixed in (common * stacked, stacked - common, torch.cat([common, stacked]), plain(common)):
        assert type(mixed) is Tensor
    assert common.add_(1) is common
    assert torch.equal(plain(common), stacked)
    doubled = vmap(lambda row: row * common.sum() + common)(stacked)
    assert type(doubled) is Tensor
    assert torch.equal(doubled[0], 2 * 40 * torch.ones(4, 5) + 2)
