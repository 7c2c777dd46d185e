"""FedCP: a round by hand (Zhang et al. 2023), the loss in NumPy and its gradient by differences, in every engine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground import load_run, train
from commonground.algorithms.fedcp import FedCP, discrepancy
from commonground.config import RunConfig
from commonground.engine.prepare import prepare_setup
from commonground.models import Linear
from tests.algorithms.reference import BODY, LR, MOMENTUM, SETTINGS, Weights, mean, network, part, plan_batches, problem
from tests.helpers import (
    ENGINES,
    EXACT,
    TwoLayer,
    as_numpy,
    assert_same_run,
    assert_tensors_close,
    made_data,
    seeded,
    train_whole,
)

GLOBAL = ("head.generic.weight", "head.generic.bias")
PERSONAL = ("head.personal.weight", "head.personal.bias")
POLICY = tuple(f"head.policy.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias"))
CONTEXT = "head.context"
LAMBDA = 2.0


def first() -> Weights:
    """The start: both heads are the model's; the policy's weights are drawn by key."""
    config = RunConfig.make(SETTINGS | {"algorithm": "fedcp"})
    setup = prepare_setup(config, problem(), network(), FedCP())
    w = as_numpy(setup.initial)
    assert set(w) == {*BODY, *GLOBAL, *PERSONAL, *POLICY, CONTEXT}
    np.testing.assert_array_equal(w[GLOBAL[0]], w[PERSONAL[0]])
    return w


def features(w: Weights, x: Any) -> Any:
    return np.tanh(x @ w["fc.weight"].T + w["fc.bias"])


def logits(w: Weights, h: Any) -> Any:
    """The policy: a linear layer on h ⊙ v/‖v‖, layer normalisation, ReLU, then a softmax over each feature's pair."""
    v = w[CONTEXT]
    a = (h * v / np.linalg.norm(v)) @ w[POLICY[0]].T + w[POLICY[1]]
    a = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5) * w[POLICY[2]] + w[POLICY[3]]
    e = np.exp(np.maximum(a, 0))
    width = h.shape[1]
    s = e[:, :width] / (e[:, :width] + e[:, width:])
    own = (s * h) @ w[PERSONAL[0]].T + w[PERSONAL[1]]
    return own + ((1 - s) * h) @ w[GLOBAL[0]].T + w[GLOBAL[1]]


def mmd(one: Any, other: Any) -> float:
    """Mean over all pairs of k(a, a′) + k(b, b′) − 2k(a, b′), k = Σ exp(−‖·‖²/2s) over s = 10, 15, 20, 50."""
    total = 0.0
    for i in range(len(one)):
        for j in range(len(one)):
            for s in (10, 15, 20, 50):
                for a, b, sign in ((one, one, 1), (other, other, 1), (one, other, -2)):
                    total += sign * np.exp(-((a[i] - b[j]) ** 2).sum() / (2 * s))
    return float(total / len(one) ** 2)


def loss(w: Weights, received: Weights, x: Any, y: Any) -> float:
    h = features(w, x)
    z = logits(w, h)
    cross = np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]
    return float(cross.mean()) + LAMBDA * mmd(h, features(received, x))


def slope(w: Weights, name: str, *at: Any) -> Any:
    g = np.zeros_like(w[name])
    for i in np.ndindex(g.shape):
        values = []
        for step in (1e-5, -1e-5):
            moved = w[name].copy()
            moved[i] += step
            values.append(loss(w | {name: moved}, *at))
        g[i] = (values[0] - values[1]) / 2e-5
    return g


@cache
def by_hand() -> tuple[Weights, list[Weights]]:
    data, sent, personal = problem(), [], []
    for c in range(3):
        received = first()
        w = received | {CONTEXT: received[PERSONAL[0]].sum(0)}
        trained = (*BODY, *PERSONAL, *POLICY)
        velocity = {n: np.zeros_like(w[n]) for n in trained}
        for x, y in plan_batches(data, c, 1, 1, epochs=1):
            g = {n: slope(w, n, received, x, y) for n in trained}
            for n in trained:
                velocity[n] = MOMENTUM * velocity[n] + g[n]
            w = w | {n: w[n] - LR * velocity[n] for n in trained}
        personal.append(part(w, PERSONAL) | {CONTEXT: w[PERSONAL[0]].sum(0)})
        mixed = {g: (w[g] + w[p]) / 2 for g, p in zip(GLOBAL, PERSONAL, strict=True)}
        sent.append(part(w, BODY + POLICY) | mixed)
    return mean(sent, [1.0] * 3), personal


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_by_hand(engine: str) -> None:
    data, (shared, personal) = problem(), by_hand()
    settings = SETTINGS | {"engine": engine, "local_epochs": 1}
    got = train_whole(FedCP(discrepancy_penalty=LAMBDA), data, model=network(), **settings)
    assert_tensors_close(got.run.shared, shared, 1e-8)
    for c in range(3):
        assert_tensors_close(got.personal[c], personal[c], 1e-8)
        index = data.test_indices(c)
        z = logits(shared | personal[c], features(shared, data.x_test[index]))
        wanted = (np.log(np.exp(z).sum(1)) - z[np.arange(len(index)), data.y_test[index]]).mean()
        assert got.run.clients[c]["test_loss"] == pytest.approx(wanted, abs=1e-7)


def test_discrepancy_leaves_padding_out() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    got = discrepancy(torch.from_numpy(one), torch.from_numpy(other), weight)
    assert float(got) == pytest.approx(mmd(one[:3], other[:3]), abs=1e-12)


@pytest.mark.parametrize("model", [network, lambda: seeded(TwoLayer), lambda: seeded(Linear, (4,), 3)])
def test_the_same_everywhere(model: Any) -> None:
    settings = SETTINGS | {"rounds": 2, "participation": 0.6}
    runs = {e: train_whole("fedcp", problem(), model=model(), **(settings | {"engine": e})) for e in ENGINES}
    for engine in EXACT:
        assert runs[engine].sha == runs["serial"].sha
    assert_same_run(runs["serial"], runs["batched"], 1e-9)


def test_what_travels() -> None:
    """Body, policy and global head, both ways; never the personal head or its sums."""
    run = train("fedcp", problem(), model=network(), **SETTINGS)
    size = 25 + (50 + 10 + 10 + 10) + 18
    assert run.history[0]["bytes_up"] == run.history[0]["bytes_down"] == 3 * 8 * size
    assert set(run.shared) == {*BODY, *GLOBAL, *POLICY}


def test_learns() -> None:
    run = train("fedcp", "digits", clients=20, classes_per_client=5, rounds=10, eval_every=10, engine="batched")
    assert run.personal_accuracy["mean"] > 0.55


def test_a_run_in_double_precision_is_read_as_it_was_made(tmp_path: Path) -> None:
    run = train(
        "fedcp", made_data((5, 3, 8)), model=seeded(TwoLayer), rounds=1, participation=0.4, dtype="float64",
        batch_size=4, out=tmp_path / "run",
    )  # fmt: skip
    again = load_run(tmp_path / "run", model=TwoLayer())
    for client in range(3):
        for name, value in run.model(client).state_dict().items():
            assert bool((again.model(client).state_dict()[name] == value).all()), name
