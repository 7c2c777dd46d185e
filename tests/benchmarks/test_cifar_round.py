"""The rate of a round: its arithmetic is what the layers of the network say, whichever engine computes it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import cifar_round
from benchmarks.peak import PeakOfAllCores
from commonground import FederatedDataset, Source
from commonground.data import Shards, deal
from commonground.engine.training import prepared

CLIENTS, ROWS = 10, 20  # rows of each client


def images() -> FederatedDataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (CLIENTS * ROWS, 32, 32, 3), dtype=np.uint8)
    y = np.arange(len(x)) % 10
    return deal(Source("images", x, y, x[:100], y[:100], 10, tuple("0123456789")), Shards(2), CLIENTS, 0)


def test_the_arithmetic_of_a_row_is_that_of_the_layers() -> None:
    setup = prepared("fedrep", images(), model="cnn", participation=0.1, rounds=1, options={"head_epochs": 3})
    convolutions = [2 * 64 * 28**2 * 3 * 5**2, 2 * 64 * 10**2 * 64 * 5**2]
    linear = [2 * 1600 * 120, 2 * 120 * 64]
    head = 2 * 64 * 10
    # Features once and three epochs of the head on them; then one of the body, whose gradients cost as much again for
    # the weights and for the inputs, but for the images, of which nobody wants any. The head stands still then.
    forward = sum(convolutions) + sum(linear)
    expected = forward + 3 * 2 * head + 3 * forward - convolutions[0] + 2 * head
    assert cifar_round.flops_of_a_row(setup) == pytest.approx(expected, rel=1e-3)


def test_a_round_is_timed_beside_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar_round, "cifar", lambda clients, data_dir: images())
    found = cifar_round.bench_cifar("serial", 1, None)
    assert found["data"] == "images"
    assert found["seconds"] > 0
    assert found["share"] == found["gflops"] / found["peak"]


def test_the_peak_of_all_cores_is_their_sum() -> None:
    meter = PeakOfAllCores(1)
    assert meter.measure() > 1
    meter.close()
