"""``--metrics full`` where a body tells nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from commonground import train
from commonground.algorithms import Algorithm, Client, Server, Tensors, Update
from commonground.engine.metrics import principal_angles
from tests.helpers import made_data, own, seeded


def dead() -> nn.Module:
    """A network whose units are negative for whatever comes in: its body gives 0 and has no gradient."""
    first = nn.Linear(64, 20)
    with torch.no_grad():
        first.bias.fill_(-1e3)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(20, 10))


def test_a_body_that_has_died_has_no_angles_and_ends_no_run() -> None:
    """As a rate that is too large leaves it, on any processor."""
    settings: dict[str, Any] = {"data": "digits", "clients": 5, "classes_per_client": 3, "rounds": 2, "seed": 0}
    settings |= {"model": dead(), "engine": "serial"}
    run = train("fedrep", metrics="full", **settings)
    assert [row["body_angle_max"] for row in run.history] == [None, None]
    plain = train("fedrep", **settings)
    assert run.summary["weights_sha256"] == plain.summary["weights_sha256"]


def test_no_directions_no_angles() -> None:
    one = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    assert len(principal_angles(torch.zeros(9, 3), one)) == 0
    assert len(principal_angles(one, one)) == 3


def test_a_head_that_has_no_row_for_each_class_has_no_collapse() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mid, self.out = nn.Linear(4, 8), nn.Linear(8, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.relu(self.mid(torch.relu(self.body(x)))))

    for method in ("fedrep", "fedavg"):
        run = train(
            method, made_data(), model=seeded(Late), head="mid*", body="body*,out*", rounds=1, metrics="full",
            engine="serial",
        )  # fmt: skip
        assert run.history[0]["global_nc2"] is None
        assert run.history[0]["after_local_accuracy"] is not None


@pytest.mark.parametrize("odd", [0, 1])
def test_clients_that_are_silent_while_others_send_are_left_out_of_what_is_shown(odd: int) -> None:
    @own
    class Quiet(Algorithm):
        shared = ("all",)
        may_stay_silent = True

        def client_update(self, client: Client, round: int) -> Tensors:
            client.fit("all")
            return client.send({} if int(client.class_counts.sum()) % 2 == odd else "all")

        def server_update(self, server: Server, updates: Sequence[Update], round: int) -> None:
            server.shared.update(server.mean([update for update in updates if update.tensors]))

    data, sizes = made_data((6, 7, 8, 9)), np.array([6, 7, 8, 9])
    row = train(Quiet(), data, rounds=1, metrics="full", engine="serial").history[0]
    speaking = np.flatnonzero(sizes % 2 != odd)
    after: list[float] = []
    for client in speaking:  # each alone trains as it did among the others, its draws apart

        @own
        class Alone(Quiet):
            may_stay_silent = True

            def client_update(self, client: Client, round: int, number: int = int(client)) -> Tensors:
                client.fit("all")
                return client.send("all" if int(client.class_counts.sum()) == sizes[number] else {})

        found = train(Alone(), data, rounds=1, metrics="full", engine="serial").history[0]
        after.append(found["after_local_accuracy"])
    assert row["after_local_accuracy"] == pytest.approx(np.mean(after))
