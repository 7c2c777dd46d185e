"""FedProx by hand, in every engine."""

from __future__ import annotations

import numpy as np
import pytest

from commonground import train
from tests.algorithms.reference import (
    ALL,
    EPOCHS,
    LR,
    MOMENTUM,
    SETTINGS,
    Weights,
    gradient,
    mean,
    network,
    plan_batches,
    problem,
    start,
)
from tests.helpers import ENGINES, assert_same_run, assert_tensors_close, dropping_chain, made_data, seeded, train_whole

MU = 0.4


def by_hand(rounds: int) -> Weights:
    """w ← w − lr·u with u ← momentum·u + ∇f_i(w; ξ) + μ (w − w_t), then the mean."""
    data, w_t = problem(), start()
    for round in range(1, rounds + 1):
        sent = []
        for i in range(3):
            w = dict(w_t)
            u = {n: np.zeros_like(v) for n, v in w.items()}
            for x, y in plan_batches(data, i, round, 1, epochs=EPOCHS):
                g = gradient(w, x, y)
                u = {n: MOMENTUM * u[n] + g[n] + MU * (w[n] - w_t[n]) for n in ALL}
                w = {n: w[n] - LR * u[n] for n in ALL}
            sent.append(w)
        w_t = mean(sent, [1, 1, 1])
    return w_t


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine: str) -> None:
    settings = SETTINGS | {"engine": engine, "rounds": 2, "options": {"mu": MU}}
    got = train_whole("fedprox", problem(), model=network(), **settings)
    assert_tensors_close(got.run.shared, by_hand(2), 1e-12)


def test_without_the_term_it_is_fedavg() -> None:
    prox = train_whole("fedprox", problem(), model=network(), **SETTINGS, options={"mu": 0.0})
    plain = train_whole("fedavg", problem(), model=network(), **SETTINGS)
    assert_tensors_close(prox.run.shared, plain.run.shared, 0.0)


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines_agree_with_dropout(engine: str) -> None:
    one, other = (
        train_whole("fedprox", made_data(), model=seeded(dropping_chain), engine=e, dtype="float64")
        for e in ("serial", engine)
    )
    assert_same_run(one, other, 1e-9 if engine == "batched" else 0.0)


def test_learns() -> None:
    run = train("fedprox", "digits", clients=20, classes_per_client=5, rounds=30, engine="batched", eval_every=30)
    assert run.personal_accuracy["mean"] > 0.6
