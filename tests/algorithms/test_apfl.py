"""APFL by hand, in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commonground import train
from tests.algorithms.reference import (
    ALL,
    EPOCHS,
    LR,
    SETTINGS,
    Weights,
    gradient,
    loss,
    mean,
    network,
    plan_batches,
    problem,
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

ALPHA, MOMENTUM, DECAY = 0.3, 0.5, 0.01


def by_hand(rounds: int, adaptive: bool, authors: bool) -> tuple[Weights, list[Weights], list[float]]:
    """The averaged w, every v_i and every α_i."""
    data, w_t = problem(), start()
    own, alphas = [start() for _ in range(3)], [ALPHA] * 3
    for round in range(1, rounds + 1):
        sent = []
        for i in range(3):
            w, v, alpha = dict(w_t), own[i], alphas[i]
            u_w = {n: np.zeros_like(w[n]) for n in ALL}
            u_v = dict(u_w)
            for x, y in plan_batches(data, i, round, 1, epochs=EPOCHS):
                rest = alpha if authors else 1 - alpha
                at_mixture = gradient({n: alpha * v[n] + rest * w[n] for n in ALL}, x, y)
                at_w = gradient(w, x, y)
                slope = sum((at_mixture[n] * (v[n] - w[n])).sum() for n in ALL)
                u_w = {n: MOMENTUM * u_w[n] + at_w[n] + DECAY * w[n] for n in ALL}
                u_v = {n: MOMENTUM * u_v[n] + alpha * at_mixture[n] + DECAY * v[n] for n in ALL}
                w = {n: w[n] - LR * u_w[n] for n in ALL}
                v = {n: v[n] - LR * u_v[n] for n in ALL}
                if adaptive:
                    alpha = min(1.0, max(0.0, alpha - LR * slope))
            own[i], alphas[i] = v, alpha
            sent.append(w)
        w_t = mean(sent, [1, 1, 1])
    return w_t, own, alphas


@pytest.mark.parametrize("variant", [{}, {"adaptive": True}, {"authors_code": True}])
@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_by_hand(engine: str, variant: dict[str, bool]) -> None:
    settings: dict[str, Any] = SETTINGS | {"engine": engine, "rounds": 2, "weight_decay": DECAY}
    data = problem()
    got = train_whole("apfl", data, model=network(), **settings, options={"alpha": ALPHA, **variant})
    adaptive = variant.get("adaptive", False)
    w, own, alphas = by_hand(2, adaptive, variant.get("authors_code", False))
    assert_tensors_close(got.run.shared, w, 1e-12)
    for i in range(3):
        wanted = {f"own/{n}": v for n, v in own[i].items()} | ({"mix/alpha": np.array(alphas[i])} if adaptive else {})
        assert_tensors_close(got.personal[i], wanted, 1e-12)
        # The model that is tested mixes v_i with the averaged w, in every variant.
        mixed = {n: alphas[i] * own[i][n] + (1 - alphas[i]) * w[n] for n in ALL}
        rows = data.test_indices(i)
        x, y = data.x_test[rows], data.y_test[rows]
        hidden = np.tanh(x @ mixed["fc.weight"].T + mixed["fc.bias"])
        right = (hidden @ mixed["head.weight"].T + mixed["head.bias"]).argmax(1) == y
        assert got.run.clients[i]["personal_accuracy"] == pytest.approx(right.mean())
    assert np.ptp(alphas) > 1e-3 if adaptive else alphas == [ALPHA] * 3


def test_the_slope_of_alpha() -> None:
    """⟨∇f(v̄), v − w⟩ is the derivative of f(α v + (1 − α) w) by α."""
    data, w, v = problem(), start(), {n: value + 0.1 for n, value in start().items()}
    x, y = plan_batches(data, 0, 1, 1, epochs=1)[0]

    def at(alpha: float) -> Weights:
        return {n: alpha * v[n] + (1 - alpha) * w[n] for n in ALL}

    slope = sum((gradient(at(ALPHA), x, y)[n] * (v[n] - w[n])).sum() for n in ALL)
    assert slope == pytest.approx((loss(at(ALPHA + 1e-5), x, y) - loss(at(ALPHA - 1e-5), x, y)) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("model", [dropping_chain, normed])
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines_agree(engine: str, model: Any) -> None:
    if model is normed and engine == "batched":
        pytest.skip("BatchNorm is refused there")

    def run(engine: str) -> Whole:
        return train_whole(
            "apfl", made_data((6, 4, 8)), model=seeded(model), engine=engine, dtype="float64",
            options={"adaptive": True},
        )  # fmt: skip

    assert_same_run(run("serial"), run(engine), 1e-9 if engine == "batched" else 0.0)


def test_no_epochs_change_nothing() -> None:
    got = train_whole("apfl", problem(), model=network(), **(SETTINGS | {"local_epochs": 0}))
    for mine in got.personal:
        assert_tensors_close(mine, {f"own/{n}": v for n, v in start().items()}, 0.0)


def test_learns() -> None:
    run = train("apfl", "digits", clients=20, classes_per_client=5, rounds=30, engine="batched", eval_every=30)
    assert run.personal_accuracy["mean"] > 0.6
