"""FedRoD: a round by hand (Chen & Chao 2022: balanced softmax, additive personal head), in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from commonground import train
from commonground.algorithms.fedrod import FedRoD
from commonground.errors import ModelError
from commonground.models import Linear
from tests.algorithms.reference import (
    BODY,
    EPOCHS,
    LR,
    MOMENTUM,
    SETTINGS,
    Weights,
    mean,
    network,
    part,
    plan_batches,
    problem,
    samples,
    start,
)
from tests.helpers import ENGINES, EXACT, TwoLayer, assert_same_run, assert_tensors_close, seeded, train_whole

GENERIC = ("head.generic.weight", "head.generic.bias")
PERSONAL = ("head.personal.weight", "head.personal.bias")


def first() -> Weights:
    w = start()
    generic = dict(zip(GENERIC, (w["head.weight"], w["head.bias"]), strict=True))
    return part(w, BODY) | generic | {n: np.zeros_like(v) for n, v in zip(PERSONAL, generic.values(), strict=True)}


def softmax(z: Any) -> Any:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def hidden_of(w: Weights, x: Any) -> Any:
    return np.tanh(x @ w["fc.weight"].T + w["fc.bias"])


def gradient(w: Weights, x: Any, y: Any, counts: Any) -> Weights:
    """With z = g(h) + log N the balanced loss moves body and g; the cross-entropy of g(h) + p(h) moves p alone."""
    hidden = hidden_of(w, x)
    generic = hidden @ w[GENERIC[0]].T + w[GENERIC[1]]
    own = hidden @ w[PERSONAL[0]].T + w[PERSONAL[1]]
    onehot = np.eye(3)[y]
    prior = counts / counts.sum()  # N_c e^g / Σ N_k e^g, a class that is not there having weight 0
    weighted = prior * np.exp(generic)
    r = (weighted / weighted.sum(1, keepdims=True) - onehot) / len(y)
    q = (softmax(generic + own) - onehot) / len(y)
    back = (r @ w[GENERIC[0]]) * (1 - hidden**2)
    return {
        "fc.weight": back.T @ x, "fc.bias": back.sum(0), GENERIC[0]: r.T @ hidden, GENERIC[1]: r.sum(0),
        PERSONAL[0]: q.T @ hidden, PERSONAL[1]: q.sum(0),
    }  # fmt: skip


def local(data: Any, client: int) -> Weights:
    w = first()
    counts = np.bincount(samples(data, client)[1], minlength=3).astype(float)
    velocity = {n: np.zeros_like(v) for n, v in w.items()}
    for x, y in plan_batches(data, client, 1, 1, epochs=EPOCHS):
        g = gradient(w, x, y, counts)
        for n in w:
            velocity[n] = MOMENTUM * velocity[n] + g[n]
        w = {n: w[n] - LR * velocity[n] for n in w}
    return w


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("evaluate", ["personal", "generic"])
def test_a_round_by_hand(evaluate: Any, engine: str) -> None:
    data = problem()
    own = [local(data, c) for c in range(3)]
    shared = mean([part(w, BODY + GENERIC) for w in own], [1.0] * 3)
    got = train_whole(FedRoD(evaluate=evaluate), data, model=network(), **(SETTINGS | {"engine": engine}))
    assert_tensors_close(got.run.shared, shared, 1e-12)
    for c in range(3):
        assert_tensors_close(got.personal[c], part(own[c], PERSONAL), 1e-12)
        index = data.test_indices(c)
        hidden = hidden_of(shared, data.x_test[index])
        logits = hidden @ shared[GENERIC[0]].T + shared[GENERIC[1]]
        if evaluate == "personal":
            logits = logits + hidden @ own[c][PERSONAL[0]].T + own[c][PERSONAL[1]]
        right = logits.argmax(1) == data.y_test[index]
        assert got.run.clients[c]["personal_accuracy"] == right.mean()
        p = softmax(logits)[np.arange(len(index)), data.y_test[index]]
        assert got.run.clients[c]["test_loss"] == pytest.approx(-np.log(p).mean(), abs=1e-12)


@pytest.mark.parametrize("model", [lambda: seeded(TwoLayer), lambda: seeded(Linear, (4,), 3)])
def test_the_same_everywhere(model: Any) -> None:
    settings = SETTINGS | {"rounds": 2, "participation": 0.6}
    runs = {e: train_whole("fedrod", problem(), model=model(), **(settings | {"engine": e})) for e in ENGINES}
    for engine in EXACT:
        assert runs[engine].sha == runs["serial"].sha
    assert_same_run(runs["serial"], runs["batched"], 1e-9)


def test_a_users_model_is_left_as_it_is() -> None:
    model = network()
    train("fedrod", problem(), model=model, **SETTINGS)
    assert isinstance(model.head, nn.Linear)


def test_a_head_of_two_layers_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3))
    with pytest.raises(ModelError, match=r"FedRoD needs a model whose head is one nn\.Linear inside it"):
        train("fedrod", problem(), model=model, head="2,3", **SETTINGS)


def test_learns() -> None:
    run = train("fedrod", "digits", clients=20, classes_per_client=5, rounds=10, eval_every=10, engine="batched")
    assert run.personal_accuracy["mean"] > 0.65
