"""Õ(d^-1/2) is judged by how noise falls with d, a factor log d allowed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from commonground.papers.local_steps.fig3 import _judge_scaling
from commonground.papers.outcome import Outcome


@pytest.mark.parametrize(
    ("noise", "exponent", "holds"),
    [
        (lambda d: 9 * d**-0.5, -0.5, True),
        (lambda d: 9 * math.log(d) ** 0.5 * d**-0.5, None, True),
        (lambda d: d**-0.2, -0.2, False),
    ],
)
def test_the_exponent_decides_and_not_the_constant(
    noise: Callable[[float], float], exponent: float | None, holds: bool
) -> None:
    outcome = Outcome()
    seeds = torch.tensor([0.97, 0.98, 0.99, 1.0, 1.01, 1.02], dtype=torch.double)  # a median is judged on six
    _judge_scaling(outcome, {d: noise(d) * seeds for d in (1000, 250, 500)})
    (claim,) = outcome.claims
    assert claim.holds is holds
    assert exponent is None or claim.measured == pytest.approx(exponent, abs=1e-9)
    assert "with d from 250 to 1000" in claim.claim
    (table,) = outcome.tables
    assert [row["d"] for row in table.rows] == [250, 500, 1000]
