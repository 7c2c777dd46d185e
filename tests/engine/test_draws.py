"""Keyed draws, participants and learning rates: invariant 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from commonground.config import RunConfig
from commonground.engine.loop import sample_clients
from commonground.errors import ConfigError
from commonground.keys import numpy_stream, torch_stream


def config(**settings: Any) -> RunConfig:
    return RunConfig.make({"lr": 0.8, "rounds": 8} | settings)


def test_known_draws() -> None:
    """Pins the streams: a change of this test changes the numbers of every run."""
    assert numpy_stream(0, "pin", 1, 2).integers(0, 1 << 30, 4).tolist() == [800818720, 513738720, 303364548, 246819912]
    assert torch_stream(0, "pin", 1, 2).initial_seed() == 911711981378423132


def test_streams_are_functions_of_their_key() -> None:
    keys: list[tuple[Any, ...]] = [
        (0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", 2), (0, "a", 1, 2), (0, "a", 2, 1), (0, "a", 12),
        (0, "a", "1,2"), (0, "a1"), (0, "a", -1),
    ]  # fmt: skip
    one = [numpy_stream(*k).random() for k in keys]
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    other = [numpy_stream(*k).random() for k in reversed(keys)][::-1]
    assert one == other
    assert len(set(one)) == len(keys)
    drawn = [float(torch.rand((), generator=torch_stream(*k))) for k in keys]
    assert len(set(drawn)) == len(keys)
    assert drawn[3] == float(torch.rand((), generator=torch_stream(*keys[3])))


def test_known_participants() -> None:
    c = config(participation=0.3, seed=0)
    assert [sample_clients(c, 10, t) for t in (1, 2, 3)] == [[2, 5, 6], [7, 8, 9], [0, 3, 8]]
    assert sample_clients(c, 10, 2) == [7, 8, 9]  # asked alone, as after a resume


@pytest.mark.parametrize(
    ("share", "clients", "wanted"), [(1.0, 7, 7), (0.1, 100, 10), (0.1, 3, 1), (0.5, 3, 2), (0.001, 20, 1)]
)
def test_number_of_participants(share: float, clients: int, wanted: int) -> None:
    for round in range(1, 20):
        chosen = sample_clients(config(participation=share), clients, round)
        assert len(set(chosen)) == len(chosen) == wanted
        assert chosen == sorted(chosen)
        assert 0 <= chosen[0] <= chosen[-1] < clients


def test_everyone_is_sampled_equally_often() -> None:
    counts = np.bincount(np.concatenate([sample_clients(config(participation=0.2), 10, t) for t in range(1, 1001)]))
    assert np.abs(counts - 200).max() < 5 * math.sqrt(1000 * 0.2 * 0.8)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.8] * 8),
        # 0.8 · ½(1 + cos(π (t−1)/8)) at t = 1, 3, 5, 7: 0.8, 0.8·½(1+√½), 0.4, 0.8·½(1−√½)
        ("cosine", {1: 0.8, 3: 0.4 * (1 + math.sqrt(0.5)), 5: 0.4, 7: 0.4 * (1 - math.sqrt(0.5))}),
        ("exponential:0.5", {1: 0.8, 2: 0.4, 3: 0.2, 8: 0.8 / 128}),
        # halved after half and after three quarters of the rounds: 4 rounds, 2 rounds, 2 rounds
        ("halve:0.5,0.75", [0.8] * 4 + [0.4] * 2 + [0.2] * 2),
        ("halve:0", [0.4] * 8),
        ("halve:1", [0.8] * 8),
    ],
)
def test_learning_rates_by_hand(schedule: str, rates: Any) -> None:
    c = config(lr_schedule=schedule)
    wanted = rates if isinstance(rates, dict) else dict(enumerate(rates, 1))
    for round, rate in wanted.items():
        assert c.lr_after((round - 1) / c.rounds) == pytest.approx(rate, rel=1e-12)


def test_halving_of_odd_numbers_of_rounds() -> None:
    """0.1 · 10 is no exact number in binary: the milestone still falls where it is written."""
    c = config(rounds=10, lr_schedule="halve:0.3,0.7")
    assert [round(c.lr_after((t - 1) / c.rounds), 6) for t in range(1, 11)] == [0.8] * 3 + [0.4] * 4 + [0.2] * 3


@pytest.mark.parametrize(
    "schedule", ["step", "cosine:1", "exponential", "exponential:0", "exponential:1.5", "halve", "halve:2", "halve:x"]
)
def test_schedules_that_do_not_exist(schedule: str) -> None:
    with pytest.raises(ConfigError, match=r"'lr_schedule' is .* is not one of constant, cosine"):
        config(lr_schedule=schedule)


def test_a_kind_without_its_number_is_not_taken_for_a_slip() -> None:
    with pytest.raises(ConfigError, match=r"'exponential' is not one of .*such as exponential:0\.99") as found:
        config(lr_schedule="exponential")
    assert "did you mean" not in str(found.value)
    with pytest.raises(ConfigError, match=r"\(did you mean 'cosine'\?\)"):
        config(lr_schedule="cosin")


@pytest.mark.parametrize("schedule", ["halve:nan", "exponential:nan"])
def test_schedules_that_are_no_number(schedule: str) -> None:
    with pytest.raises(ConfigError, match="is not one of constant"):
        config(lr_schedule=schedule)
