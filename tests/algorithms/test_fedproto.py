"""FedProto against NumPy written from Tan et al. 2022, equations 3, 6 and 7, in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from commonground import train
from commonground.algorithms import Server, Update
from commonground.algorithms.fedproto import FedProto, PrototypeHead
from commonground.engine.loop import sample_clients
from tests.algorithms.reference import (
    EPOCHS,
    LR,
    MOMENTUM,
    SETTINGS,
    Weights,
    gradient,
    network,
    plan_batches,
    problem,
    samples,
    start,
)
from tests.helpers import ENGINES, assert_tensors_close, train_whole

LAMBDA, ROUNDS, CLASSES = 1.7, 3, 3
SIZES = (5, 3, 8, 2, 1)
NAMES = {"fc.weight": "fc.weight", "fc.bias": "fc.bias", "head.own.weight": "head.weight", "head.own.bias": "head.bias"}


def features(w: Weights, x: Any) -> Any:
    return np.tanh(x @ w["fc.weight"].T + w["fc.bias"])


def pull(w: Weights, x: Any, y: Any, prototypes: dict[int, Any], distance: str) -> Any:
    """∂ λ L_R / ∂ features, for the classes that have a global prototype."""
    z = features(w, x)
    slope = np.zeros_like(z)
    for j, prototype in prototypes.items():
        here = y == j
        if not here.any():
            continue
        gap = z[here].mean(0) - prototype
        if distance == "means":
            slope[here] = 2 * gap / len(gap) / here.sum()
        elif distance == "norm":
            slope[here] = gap / np.linalg.norm(gap) / here.sum()
        else:
            slope[here] = 2 * (z[here] - prototype) / z.shape[1] / len(y)
    return LAMBDA * slope


def rounds_by_hand(participants: list[list[int]], method: FedProto) -> tuple[dict[int, Any], list[Weights]]:
    """Global prototypes by class, and every client's model."""
    data, models = problem(SIZES), [start() for _ in SIZES]
    prototypes: dict[int, Any] = {}
    for t, chosen in enumerate(participants, 1):
        sent: dict[int, list[tuple[int, Any]]] = {}
        for i in chosen:
            w = models[i]
            speed = {n: np.zeros_like(v) for n, v in w.items()}
            for x, y in plan_batches(data, i, t, 1, epochs=EPOCHS):
                g = gradient(w, x, y)
                back = pull(w, x, y, prototypes, method.distance) * (1 - features(w, x) ** 2)
                g |= {"fc.weight": g["fc.weight"] + back.T @ x, "fc.bias": g["fc.bias"] + back.sum(0)}
                speed = {n: MOMENTUM * speed[n] + g[n] for n in w}
                w = {n: w[n] - LR * speed[n] for n in w}
            models[i] = w
            x, y = samples(data, i)
            for j in set(y.tolist()):
                sent.setdefault(j, []).append(((y == j).sum(), features(w, x)[y == j].mean(0)))
        for j, parts in sent.items():
            weights = [n if method.aggregation == "samples" else 1 for n, _ in parts]
            prototypes[j] = sum(k * p for k, (_, p) in zip(weights, parts, strict=True)) / sum(weights)
    return prototypes, models


@pytest.mark.parametrize(
    "method",
    [
        FedProto(LAMBDA),
        FedProto(LAMBDA, distance="norm"),
        FedProto(LAMBDA, aggregation="uniform", distance="samples", evaluate="head"),
    ],
    ids=["paper", "norm", "code"],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_three_rounds(engine: str, method: FedProto) -> None:
    data = problem(SIZES)
    settings = SETTINGS | {"engine": engine, "rounds": ROUNDS, "participation": 0.6}
    got = train_whole(method, data, model=network(), **settings)
    chosen = [sample_clients(got.run.config, len(SIZES), t) for t in range(1, ROUNDS + 1)]
    prototypes, models = rounds_by_hand([[int(c) for c in each] for each in chosen], method)
    assert set(prototypes) == set(range(CLASSES)), "the seed of this test is to be chosen so that all classes are sent"
    wanted = np.stack([prototypes[j] for j in range(CLASSES)])
    np.testing.assert_allclose(got.run.shared["head.prototypes"].numpy(), wanted, rtol=0, atol=1e-12)
    for i, mine in enumerate(got.personal):
        assert_tensors_close(mine, {name: models[i][plain] for name, plain in NAMES.items()}, 1e-12)
        rows = data.test_indices(i)
        z, y = features(models[i], data.x_test[rows]), data.y_test[rows]
        logits = z @ models[i]["head.weight"].T + models[i]["head.bias"]
        if method.evaluate == "prototypes":
            logits = -((z[:, np.newaxis] - wanted) ** 2).sum(2)
        assert got.run.clients[i]["personal_accuracy"] == pytest.approx((logits.argmax(1) == y).mean())
        cross = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
        assert got.run.clients[i]["test_loss"] == pytest.approx(cross.mean())


def test_the_server_by_hand() -> None:
    """Means 1 of three samples and 5 of one: 2, or 3 without weights; a class that nobody sent keeps its own."""
    for method, wanted, counts in ((FedProto(), 2.0, (3.0, 1.0)), (FedProto(aggregation="uniform"), 3.0, (1.0, 1.0))):
        server = Server({"h.prototypes": torch.tensor([[9.0], [7.0]]), "h.samples": torch.tensor([1.0, 4.0])})
        updates = [
            Update(k, 4, {"h.prototypes": torch.tensor([[mean], [0.0]]), "h.samples": torch.tensor([count, 0.0])})
            for k, (mean, count) in enumerate(zip((1.0, 5.0), counts, strict=True))
        ]
        method.server_update(server, updates, 1)
        assert server.shared["h.prototypes"].tolist() == [[wanted], [7.0]]
        assert server.shared["h.samples"].tolist() == [sum(counts), 4.0]


def test_the_nearest_prototype_by_hand() -> None:
    head = PrototypeHead(torch.nn.Linear(1, 3), nearest=True).eval()
    head.prototypes.copy_(torch.tensor([[0.0], [3.0], [0.0]]))
    head.samples.copy_(torch.tensor([2.0, 1.0, 0.0]))  # nobody has sent the last class
    assert head(torch.tensor([[1.0], [2.0]])).tolist() == [[-1.0, -4.0, -5.0], [-4.0, -1.0, -5.0]]
    head.train()
    assert torch.equal(head(torch.ones(1, 1)), head.own(torch.ones(1, 1)))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_at_its_prototype_has_a_finite_gradient(engine: str) -> None:
    """One client, one sample, no step: its mean is the prototype, where a square root has no slope."""
    data = problem((1,))
    settings = SETTINGS | {"engine": engine, "rounds": 2, "lr": 1e-30}
    got = train_whole(FedProto(distance="norm"), data, model=network(), **settings)
    assert all(torch.isfinite(value).all() for value in got.personal[0].values())


def test_what_travels() -> None:
    """Three means of five features and three numbers, both ways; no model. Without weights, which classes alone."""
    for aggregation in ("samples", "uniform"):
        run = train("fedproto", problem(), model=network(), options={"aggregation": aggregation}, **SETTINGS)
        assert run.history[0]["bytes_up"] == run.history[0]["bytes_down"] == 3 * 8 * (3 * 5 + 3)
        assert set(run.shared) == {"head.prototypes", "head.samples"}
        assert run.summary["global_accuracy"] is None
        have = [set(samples(problem(), c)[1].tolist()) for c in range(3)]
        counts = [sum(j in each for each in have) for j in range(CLASSES)]
        if aggregation == "uniform":
            assert run.shared["head.samples"].tolist() == counts
