"""Which samples make up which batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from commonground.engine.clients.batches import BatchSchedule, batch_schedule, knowing_rows, real_rows
from commonground.errors import ConfigError

sizes = st.integers(1, 40)
batch_sizes = st.integers(1, 50)


def plan(size: int, batch_size: int, *key: int, **length: Any) -> BatchSchedule:
    seed, round, client, phase = key or (0, 1, 2, 3)
    return batch_schedule(seed, round, client, phase, size=size, batch_size=batch_size, **length)


def batches(p: BatchSchedule) -> list[list[int]]:
    """The positions of each batch; checks that padding is at the end and marked by −1."""
    found = []
    for row, count in zip(p.order, p.counts, strict=True):
        assert (row[:count] >= 0).all()
        assert (row[count:] == -1).all()
        found.append(row[:count].tolist())
    return found


@settings(deadline=None)
@given(sizes, batch_sizes, st.integers(0, 4))
def test_epochs(size: int, batch_size: int, epochs: int) -> None:
    """Every epoch is a permutation cut into full batches and a rest."""
    p = plan(size, batch_size, epochs=epochs)
    per_epoch = math.ceil(size / batch_size)
    assert p.steps == epochs * per_epoch
    assert p.last_epoch == max(0, (epochs - 1) * per_epoch)
    cut = batches(p)
    for e in range(epochs):
        epoch = cut[e * per_epoch : (e + 1) * per_epoch]
        assert sorted(i for batch in epoch for i in batch) == list(range(size))
        assert all(len(batch) == min(batch_size, size) for batch in epoch[:-1])
        assert len(epoch[-1]) == (size % batch_size or batch_size if size > batch_size else size)


@settings(deadline=None)
@given(sizes, batch_sizes, st.integers(0, 30))
def test_steps(size: int, batch_size: int, steps: int) -> None:
    """The first batches of as many epochs as it takes."""
    p = plan(size, batch_size, steps=steps)
    per_epoch = math.ceil(size / batch_size)
    whole = plan(size, batch_size, epochs=math.ceil(steps / per_epoch))
    assert batches(p) == batches(whole)[:steps]
    assert p.steps == steps
    assert p.last_epoch == max(0, math.ceil(steps / per_epoch) - 1) * per_epoch


@settings(deadline=None)
@given(sizes, batch_sizes, st.integers(0, 100))
def test_samples(size: int, batch_size: int, samples: int) -> None:
    """The first so many samples of as many epochs as it takes; no empty batch."""
    p = plan(size, batch_size, samples=samples)
    whole = plan(size, batch_size, epochs=math.ceil(samples / size))
    drawn = [i for batch in batches(p) for i in batch]
    assert drawn == [i for batch in batches(whole) for i in batch][:samples]
    assert int(p.counts.sum()) == samples
    assert (p.counts > 0).all()


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12))
def test_steps_draw_as_epochs_do(size: int, batch_size: int) -> None:
    """One epoch asked for in steps or in samples is the same epoch."""
    one = plan(size, batch_size, epochs=1)
    assert (
        batches(one)
        == batches(plan(size, batch_size, steps=one.steps))
        == batches(plan(size, batch_size, samples=size))
    )


def test_every_part_of_the_key_counts() -> None:
    keys = [(0, 1, 2, 3), (1, 1, 2, 3), (0, 2, 2, 3), (0, 1, 3, 3), (0, 1, 2, 4)]
    orders = [plan(20, 20, *key, epochs=1).order[0].tolist() for key in keys]
    assert len({tuple(order) for order in orders}) == len(keys)
    assert plan(20, 20, *keys[0], epochs=1).order[0].tolist() == orders[0]
    two = plan(20, 20, epochs=2).order
    assert two[0].tolist() != two[1].tolist()


def test_a_known_plan() -> None:
    """Pins the draws: a change of this test changes the numbers of every run."""
    p = batch_schedule(0, 1, 2, 1, size=5, batch_size=2, epochs=1)
    assert p.order.tolist() == [[1, 4], [0, 2], [3, -1]]
    assert p.counts.tolist() == [2, 2, 1]


def test_shuffles_are_fair() -> None:
    """Each sample comes first about equally often: 2,000 draws over 5 places, 400 ± 5 standard deviations."""
    first = [plan(5, 5, 0, round, 0, 1, epochs=1).order[0, 0] for round in range(2000)]
    assert np.abs(np.bincount(first, minlength=5) - 400).max() < 5 * math.sqrt(2000 * 0.2 * 0.8)


@pytest.mark.parametrize("length", [{}, {"epochs": 1, "steps": 1}, {"epochs": -1}, {"samples": -3}])
def test_unclear_lengths(length: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="exactly one of epochs, steps and samples"):
        plan(5, 2, **length)


def test_weights_know_their_rows_until_they_are_changed() -> None:
    """What a method makes of a batch's weights, or changes in them, is looked at anew."""
    weight = knowing_rows(torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([0, 1, 3]))
    assert real_rows(weight).tolist() == [0, 1, 3]
    assert real_rows(knowing_rows(weight.clone(), torch.tensor([7]))).tolist() == [7]  # taken as it is said
    assert real_rows(weight[:, :2]).tolist() == [0, 1, 2]
    assert real_rows(weight * torch.tensor([0.0, 1.0, 1.0])).tolist() == [1]
    weight[:, 1:] = 0
    assert real_rows(weight).tolist() == [0, 3]
