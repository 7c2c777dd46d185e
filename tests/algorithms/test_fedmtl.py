"""Fed-MTL by hand, in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commonground import train
from commonground.engine.loop import sample_clients
from tests.algorithms.reference import (
    ALL,
    EPOCHS,
    LR,
    MOMENTUM,
    SETTINGS,
    Weights,
    gradient,
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

STRENGTH, RIDGE, SMOOTHING, M = 0.3, 0.05, 0.4, 3


def column(w: Weights) -> Any:
    return np.concatenate([w[n].ravel() for n in ALL])


def model(values: Any) -> Weights:
    parts, at = {}, 0
    for name, like in start().items():
        parts[name] = values[at : at + like.size].reshape(like.shape)
        at += like.size
    return parts


def fixed(w: Any) -> Any:
    """(I − 11ᵀ/m)²."""
    projection = np.eye(M) - np.ones((M, M)) / M
    return projection @ projection


def learned(w: Any) -> Any:
    """(1/m) ((1 − ρ) S/tr(S) + ρ I/m)^(−1), S = (WᵀW)^(1/2), from the singular values of W [d, m] themselves."""
    _, s, vt = np.linalg.svd(w, full_matrices=False)
    s = np.maximum(s, 1e-5 * s.max())
    root = vt.T @ np.diag(s) @ vt
    return np.linalg.inv((1 - SMOOTHING) * root / np.trace(root) + SMOOTHING * np.eye(M) / M) / M


def by_hand(omega: str, participants: list[list[int]]) -> Any:
    """W [d, m] after the rounds: SGD with momentum on a column, by the gradient of the whole objective."""
    data = problem()
    w = np.stack([column(start())] * M, axis=1)
    for round, chosen in enumerate(participants, start=1):
        relations = (fixed if omega == "fixed" else learned)(w)
        after = w.copy()
        for i in chosen:
            now, u = w.copy(), np.zeros(len(w))
            for x, y in plan_batches(data, i, round, 1, epochs=EPOCHS):
                g = column(gradient(model(now[:, i]), x, y))
                g = g + STRENGTH * 2 * (now @ relations)[:, i] + RIDGE * 2 * now[:, i]
                u = MOMENTUM * u + g
                now[:, i] -= LR * u
            after[:, i] = now[:, i]
        w = after
    return w


@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize("omega", ["fixed", "learned"])
@pytest.mark.parametrize("engine", ENGINES)
def test_three_rounds_by_hand(engine: str, omega: str, participation: float) -> None:
    options = {"strength": STRENGTH, "ridge": RIDGE, "omega": omega, "smoothing": SMOOTHING}
    settings: dict[str, Any] = SETTINGS | {"engine": engine, "rounds": 3, "participation": participation}
    got = train_whole("fedmtl", problem(), model=network(), **settings, options=options)
    w = by_hand(omega, [sample_clients(got.run.config, M, r) for r in (1, 2, 3)])
    assert_tensors_close(got.run.shared, model(w.mean(1)), 1e-9)
    for i, mine in enumerate(got.personal):
        assert_tensors_close(mine, {f"own/{n}": v for n, v in model(w[:, i]).items()}, 1e-9)


def test_the_mean_regularisation_is_the_distance_to_the_mean() -> None:
    w = np.random.default_rng(0).normal(size=(7, M))
    distance = ((w - w.mean(1, keepdims=True)) ** 2).sum()
    assert np.trace(w @ fixed(w) @ w.T) == pytest.approx(distance)


def test_unrelated_models_of_one_norm_give_the_identity() -> None:
    np.testing.assert_allclose(learned(np.eye(5, M) * 2.0), np.eye(M), atol=1e-12)


def test_without_strength_it_is_local_only() -> None:
    mtl = train_whole("fedmtl", problem(), model=network(), **(SETTINGS | {"rounds": 2}), options={"strength": 0.0})
    local = train_whole("local", problem(), model=network(), **(SETTINGS | {"rounds": 2}))
    for mine, wanted in zip(mtl.personal, local.personal, strict=True):
        assert_tensors_close({n.removeprefix("own/"): v for n, v in mine.items()}, wanted, 1e-12)


@pytest.mark.parametrize("omega", ["fixed", "learned"])
@pytest.mark.parametrize("kind", [dropping_chain, normed])
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines_agree(engine: str, kind: Any, omega: str) -> None:
    if kind is normed and engine == "batched":
        pytest.skip("BatchNorm is refused there")

    def run(engine: str) -> Whole:
        return train_whole(
            "fedmtl", made_data((6, 4, 8)), model=seeded(kind), engine=engine, dtype="float64",
            options={"omega": omega},
        )  # fmt: skip

    assert_same_run(run("serial"), run(engine), 1e-9 if engine == "batched" else 0.0)


@pytest.mark.parametrize("omega", ["fixed", "learned"])
def test_learns(omega: str) -> None:
    run = train(
        "fedmtl", "digits", clients=20, classes_per_client=5, rounds=30, engine="batched", eval_every=30,
        options={"omega": omega},
    )  # fmt: skip
    assert run.personal_accuracy["mean"] > 0.6
