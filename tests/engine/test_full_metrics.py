"""``--metrics full`` where a body tells nothing."""

from __future__ import annotations

from typing import Any

import torch

from commonground import train
from commonground.engine.metrics import principal_angles


def test_a_body_that_has_died_has_no_angles_and_ends_no_run() -> None:
    """At such a rate all units of the body are negative for whatever comes in, and its outputs 0."""
    settings: dict[str, Any] = {
        "data": "digits",
        "clients": 5,
        "classes_per_client": 3,
        "rounds": 2,
        "lr": 1000.0,
        "seed": 0,
    }
    run = train("fedrep", engine="serial", metrics="full", **settings)
    assert [row["body_angle_max"] for row in run.history][-1] is None
    plain = train("fedrep", engine="serial", **settings)
    assert run.summary["weights_sha256"] == plain.summary["weights_sha256"]


def test_no_directions_no_angles() -> None:
    one = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    assert len(principal_angles(torch.zeros(9, 3), one)) == 0
    assert len(principal_angles(one, one)) == 3
