"""Ditto by hand, in every engine."""

from __future__ import annotations

from typing import Any

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
    sgd,
    start,
)
from tests.helpers import (
    ENGINES,
    Whole,
    assert_same_run,
    assert_tensors_close,
    dropping_chain,
    made_data,
    normed,
    seeded,
    train_whole,
)

LAMBDA, PERSONAL_EPOCHS = 0.6, 3


def by_hand(rounds: int) -> tuple[Weights, list[Weights]]:
    """w_t and every v_i: v ← v − lr·u, u ← momentum·u + ∇f_i(v; ξ) + λ (v − w_t)."""
    data, w_t = problem(), start()
    own = [start() for _ in range(3)]
    for round in range(1, rounds + 1):
        sent = []
        for i in range(3):
            sent.append(sgd(w_t, ALL, plan_batches(data, i, round, 1, epochs=EPOCHS)))
            v = own[i]
            u = {n: np.zeros_like(v[n]) for n in ALL}
            for x, y in plan_batches(data, i, round, 2, epochs=PERSONAL_EPOCHS):
                g = gradient(v, x, y)
                u = {n: MOMENTUM * u[n] + g[n] + LAMBDA * (v[n] - w_t[n]) for n in ALL}
                v = {n: v[n] - LR * u[n] for n in ALL}
            own[i] = v
        w_t = mean(sent, [1, 1, 1])
    return w_t, own


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine: str) -> None:
    options = {"strength": LAMBDA, "personal_epochs": PERSONAL_EPOCHS}
    settings: dict[str, Any] = SETTINGS | {"engine": engine, "rounds": 2, "options": options}
    got = train_whole("ditto", problem(), model=network(), **settings)
    shared, own = by_hand(2)
    assert_tensors_close(got.run.shared, shared, 1e-12)
    for mine, wanted in zip(got.personal, own, strict=True):
        assert_tensors_close(mine, {f"own/{n}": v for n, v in wanted.items()}, 1e-12)


def test_the_global_part_is_fedavg() -> None:
    ditto = train_whole("ditto", problem(), model=network(), **(SETTINGS | {"rounds": 3}))
    plain = train_whole("fedavg", problem(), model=network(), **(SETTINGS | {"rounds": 3}))
    assert_tensors_close(ditto.run.shared, plain.run.shared, 0.0)


@pytest.mark.parametrize("model", [dropping_chain, normed])
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines_agree(engine: str, model: Any) -> None:
    if model is normed and engine == "batched":
        pytest.skip("BatchNorm is refused there")

    def run(engine: str) -> Whole:
        return train_whole("ditto", made_data((6, 4, 8)), model=seeded(model), engine=engine, dtype="float64")

    one, other = run("serial"), run(engine)
    assert_same_run(one, other, 1e-9 if engine == "batched" else 0.0)
    if model is normed:  # each of the two models has statistics of its own
        means = {tuple(mine["own/1.running_mean"].tolist()) for mine in one.personal}
        assert len(means) == 3
        assert tuple(one.run.shared["1.running_mean"].tolist()) not in means


def test_learns() -> None:
    run = train("ditto", "digits", clients=20, classes_per_client=5, rounds=30, engine="batched", eval_every=30)
    assert run.personal_accuracy["mean"] > 0.6
