"""``--metrics full`` where a body tells nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from commonground import train
from commonground.engine.metrics import principal_angles


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
