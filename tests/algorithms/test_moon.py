"""MOON against NumPy written from Li, He, Song 2021, equations 3 and 4, in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from commonground import train
from commonground.algorithms.moon import Moon, ProjectedHead
from commonground.engine.loop import sample_clients
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
from tests.helpers import ENGINES, EXACT, TwoLayer, assert_same_run, assert_tensors_close, seeded, train_whole

MU, TAU, ROUNDS = 2.0, 0.4, 3
SIZES = (5, 3, 8, 2, 6)


def features(w: Weights, x: Any) -> Any:
    return np.tanh(x @ w["fc.weight"].T + w["fc.bias"])


def cosine(z: Any, a: Any) -> Any:
    return (z * a).sum(1) / (np.linalg.norm(z, axis=1) * np.linalg.norm(a, axis=1))


def cosine_slope(z: Any, a: Any) -> Any:
    """∂ cos(z, a) / ∂z, row by row."""
    size = np.linalg.norm(z, axis=1, keepdims=True)
    other = np.linalg.norm(a, axis=1, keepdims=True)
    return a / (size * other) - (z * a).sum(1, keepdims=True) * z / (size**3 * other)


def whole_gradient(w: Weights, towards: Weights, away: Weights, x: Any, y: Any) -> Weights:
    """Of the mean of cross-entropy + μ · contrastive loss."""
    g = gradient(w, x, y)
    z, near, far = features(w, x), features(towards, x), features(away, x)
    # −log(e^a / (e^a + e^b)) has the slopes −p, p in a, b, with p = e^b / (e^a + e^b).
    a, b = np.exp(cosine(z, near) / TAU), np.exp(cosine(z, far) / TAU)
    p = (b / (a + b))[:, np.newaxis]
    slope = MU * p / TAU * (cosine_slope(z, far) - cosine_slope(z, near)) / len(y)
    back = slope * (1 - z**2)
    return g | {"fc.weight": g["fc.weight"] + back.T @ x, "fc.bias": g["fc.bias"] + back.sum(0)}


def rounds_by_hand(participants: list[list[int]]) -> tuple[Weights, list[Weights]]:
    """The global model, and every client's of its last round."""
    data, shared = problem(SIZES), start()
    previous = [start() for _ in SIZES]
    for t, chosen in enumerate(participants, 1):
        for i in chosen:
            w, speed = dict(shared), {n: np.zeros_like(v) for n, v in shared.items()}
            for x, y in plan_batches(data, i, t, 1, epochs=EPOCHS):
                g = whole_gradient(w, shared, previous[i], x, y)
                for n in ALL:
                    speed[n] = MOMENTUM * speed[n] + g[n]
                    w[n] = w[n] - LR * speed[n]
            previous[i] = w
        shared = mean([previous[i] for i in chosen], [1.0] * len(chosen))
    return shared, previous


@pytest.mark.parametrize("engine", ENGINES)
def test_three_rounds(engine: str) -> None:
    settings = SETTINGS | {"engine": engine, "rounds": ROUNDS, "participation": 0.6}
    got = train_whole(Moon(strength=MU, temperature=TAU), problem(SIZES), model=network(), **settings)
    chosen = [sample_clients(got.run.config, len(SIZES), t) for t in range(1, ROUNDS + 1)]
    shared, previous = rounds_by_hand([[int(c) for c in each] for each in chosen])
    assert_tensors_close(got.run.shared, shared, 1e-12)
    for mine, wanted in zip(got.personal, previous, strict=True):
        assert_tensors_close(mine, {f"own/{n}": v for n, v in wanted.items()}, 1e-12)


def test_the_first_round_is_fedavg() -> None:
    """Both features are those of the start, so the loss is log 2 more and pulls nowhere."""
    runs = [train_whole(m, problem(), model=network(), **SETTINGS) for m in (Moon(strength=5.0), "fedavg")]
    assert_tensors_close(runs[0].run.shared, runs[1].run.shared, 1e-14)
    assert runs[0].losses[0] == pytest.approx(runs[1].losses[0] + 5 * np.log(2))


def test_a_client_s_own_model_is_the_global_one() -> None:
    run = train("moon", problem(), model=network(), **SETTINGS)
    assert run.global_accuracy == run.personal_accuracy["mean"]
    assert run.model(0).state_dict().keys() == run.model().state_dict().keys()


@pytest.mark.parametrize("model", [network, lambda: seeded(TwoLayer)])
def test_with_a_projection_head(model: Any) -> None:
    """The projection is a part of the body, and the loss compares what the output layer sees."""
    method, settings = Moon(projection=2), SETTINGS | {"rounds": 2}
    runs = {e: train_whole(method, problem(), model=model(), **(settings | {"engine": e})) for e in ENGINES}
    for engine in EXACT:
        assert runs[engine].sha == runs["serial"].sha
    assert_same_run(runs["serial"], runs["batched"], 1e-10)
    names = {f"head.{n}.{t}" for n in ("projection.0", "projection.2", "output") for t in ("weight", "bias")}
    assert names <= set(runs["serial"].run.shared)
    assert runs["serial"].run.shared["head.output.weight"].shape == (3, 2)


def test_the_projection_head_by_hand() -> None:
    head = torch.nn.Linear(2, 3)
    made = ProjectedHead(head, 1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(1.0)
    # (1, −3): both hidden numbers are 1 − 3 + 1 = −1, cut to 0; the projection is 1, each logit 1 + 1.
    assert made(torch.tensor([[1.0, -3.0], [1.0, 1.0]])).tolist() == [[2.0] * 3, [8.0] * 3]
