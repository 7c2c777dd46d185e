"""What the studies share: draws, angles, refusals, judgements over seeds."""

from __future__ import annotations

import math

import pytest
import torch

from commonground.errors import ConfigError, DivergenceError
from commonground.theory.checks import OnDivergence, Watch, at_least, between, positive, raise_if_diverged
from commonground.theory.draws import normal, permutations
from commonground.theory.subspace import principal_angle_distance


def test_a_seed_draws_the_same_whatever_stands_beside_it() -> None:
    assert torch.equal(normal([3, 7], "x", 4, ids=(1,))[1], normal([7], "x", 4, ids=(1,))[0])
    assert not torch.equal(normal([7], "x", 4, ids=(1,)), normal([7], "x", 4, ids=(2,)))
    assert torch.equal(permutations([3, 7], "p", 9)[1], permutations([7], "p", 9)[0])


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-5, 0.3, math.pi / 2])
def test_distance_is_the_sine_of_the_largest_angle(angle: float) -> None:
    one = torch.eye(4, 2, dtype=torch.float64)
    other = one.clone()
    other[:, 1] = torch.tensor([0, math.cos(angle), math.sin(angle), 0])
    mixed = other @ torch.tensor([[2.0, 1.0], [0.5, 3.0]], dtype=torch.float64)  # any basis of the same space
    assert float(principal_angle_distance(one, mixed)) == pytest.approx(math.sin(angle), rel=1e-3, abs=1e-15)


def test_refusals_name_the_number() -> None:
    with pytest.raises(ConfigError, match="m is 0; it must be at least 1"):
        at_least("m", 0, 1)
    with pytest.raises(ConfigError, match=r"r is 1.5; it must lie in \[0, 1\]"):
        between("r", 1.5, 0, 1)
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="must be positive"):
            positive("step", value)
    with pytest.raises(DivergenceError, match=r"FedRep diverges.*round 3 \(seed 8, step size 9\)"):
        raise_if_diverged(torch.tensor([[1.0], [math.nan]]), "FedRep", 3, [7, 8], 9.0)


@pytest.mark.parametrize(("on_divergence", "ends_at"), [("raise", 1), ("most", 2), ("record", None)])
def test_a_seed_that_diverges_ends_the_study_or_is_noted(on_divergence: OnDivergence, ends_at: int | None) -> None:
    watch = Watch([7, 8, 9], torch.device("cpu"), on_divergence)
    assert watch.look(torch.ones(3, 2), "FedRep", 0, 0.5) is None
    for round_, gone in ((1, [8]), (2, [8, 9]), (3, [8, 9])):
        iterate = torch.ones(3, 2)
        iterate[[seed - 7 for seed in gone], 0] = math.nan
        if round_ == ends_at:
            with pytest.raises(DivergenceError, match=r"FedRep diverges.*round \d.*; use .* such as step=0.25$"):
                watch.look(iterate, "FedRep", round_, 0.5)
            return
        found = watch.look(iterate, "FedRep", round_, 0.5)
        assert found is not None
        assert [seed for seed, bad in zip((7, 8, 9), found.tolist(), strict=True) if bad] == gone
    assert watch.ended.tolist() == [-1, 1, 2]
    assert watch.from_then_on(torch.zeros(3, 4), 5.0).tolist() == [[0] * 4, [0, 5, 5, 5], [0, 0, 5, 5]]
