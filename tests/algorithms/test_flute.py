"""FLUTE and FLUTE*: a round by hand (Liu et al. 2024, eqs. (49), (51), Algorithm 2), in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from commonground import FederatedDataset, train
from commonground.algorithms.flute import FLUTE, neural_collapse
from commonground.algorithms.flute_star import FLUTEStar
from commonground.errors import ModelError, UpdateError
from commonground.models import Linear
from tests.algorithms.reference import (
    ALL,
    BODY,
    EPOCHS,
    HEAD,
    LR,
    MOMENTUM,
    SETTINGS,
    Weights,
    gradient,
    mean,
    network,
    part,
    plan_batches,
    problem,
    samples,
    start,
)
from tests.helpers import ENGINES, EXACT, TwoLayer, assert_same_run, assert_tensors_close, seeded, train_whole

SHARES: dict[str, Any] = {"feature_penalty": 0.03, "head_penalty": 0.02, "collapse_penalty": 0.4, "server_lr": 0.7}


def collapse(w: Any, u: Any) -> tuple[float, Any]:
    """NC of eq. (51) and its gradient: with G = WWᵀ, n = ‖G‖, D = G/n − T and S = D/‖D‖ it is
    2 (S/n − ⟨S, G⟩ G/n³) W.
    """
    m = len(u)
    gram = w @ w.T
    n = np.sqrt((gram**2).sum())
    distance = gram / n - np.outer(u, u) * (np.eye(m) - np.ones((m, m)) / m) / np.sqrt(m - 1)
    norm = np.sqrt((distance**2).sum())
    s = distance / norm
    return float(norm), 2 * (s / n - (s * gram).sum() * gram / n**3) @ w


def classes_of(data: FederatedDataset, client: int) -> Any:
    return np.isin(np.arange(3), samples(data, client)[1]).astype(float)


def steps(w: Weights, names: Any, batches: Any, u: Any, norms: str) -> Weights:
    """SGD on eq. (49)."""
    w = dict(w)
    velocity = {n: np.zeros_like(w[n]) for n in names}
    for x, y in batches:
        g = gradient(w, x, y)
        hidden = np.tanh(x @ w["fc.weight"].T + w["fc.bias"])
        divisor = len(y) if norms == "mean" else 1
        back = SHARES["feature_penalty"] * 2 * hidden / divisor * (1 - hidden**2)
        g["fc.weight"] = g["fc.weight"] + back.T @ x
        g["fc.bias"] = g["fc.bias"] + back.sum(0)
        nc = collapse(w["head.weight"], u)[1]
        g["head.weight"] = g["head.weight"] + 2 * SHARES["head_penalty"] * w["head.weight"]
        g["head.weight"] = g["head.weight"] + SHARES["collapse_penalty"] * nc
        for n in names:
            velocity[n] = MOMENTUM * velocity[n] + g[n]
            w[n] = w[n] - LR * velocity[n]
    return w


def by_hand(
    data: FederatedDataset, head_epochs: int, norms: str, server: str, head_first: bool = False
) -> tuple[Weights, list[Weights]]:
    both, head = (ALL, EPOCHS), (HEAD, head_epochs)
    phases = [head, both] if head_first else [both, head]
    sent, heads = [], []
    for c in range(3):
        u = classes_of(data, c)
        w = start()
        for number, (names, epochs) in enumerate([phase for phase in phases if phase[1]], 1):
            w = steps(w, names, plan_batches(data, c, 1, number, epochs=epochs), u, norms)
        sent.append(part(w, BODY))
        factor = 1 / 3 if server == "mean" else 1.0
        moved = w["head.weight"] - SHARES["server_lr"] * factor * collapse(w["head.weight"], u)[1]
        heads.append({"head.weight": moved, "head.bias": w["head.bias"]})
    return mean(sent, [1.0] * 3), heads


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize(("norms", "server"), [("mean", "sum"), ("sum", "mean")])
def test_a_round_by_hand(star: bool, norms: Any, server: Any, engine: str) -> None:
    data = problem()
    assert [classes_of(data, c).tolist() for c in range(3)] == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    options = SHARES | {"feature_norms": norms, "server_penalty": server}
    algorithm = FLUTEStar(**options, head_epochs=3) if star else FLUTE(**options)
    body, heads = by_hand(data, 3 if star else 0, norms, server)
    got = train_whole(algorithm, data, model=network(), **(SETTINGS | {"engine": engine}))
    assert_tensors_close(got.run.shared, body, 1e-12)
    for mine, wanted in zip(got.personal, heads, strict=True):
        assert_tensors_close(mine, wanted, 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_with_the_heads_epochs_first_by_hand(engine: str) -> None:
    data = problem()
    body, heads = by_hand(data, 3, "mean", "sum", head_first=True)
    algorithm = FLUTEStar(**SHARES, head_epochs=3, head_first=True)
    got = train_whole(algorithm, data, model=network(), **(SETTINGS | {"engine": engine}))
    assert_tensors_close(got.run.shared, body, 1e-12)
    for mine, wanted in zip(got.personal, heads, strict=True):
        assert_tensors_close(mine, wanted, 1e-12)


def test_collapse_by_hand() -> None:
    # G = diag(4, 1, 0), ‖G‖ = √17; m = 3, u = (1, 1, 0): the target is ((2/3, −1/3), (−1/3, 2/3)) / √2 and zero.
    w = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    u = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    a, b, c = 4 / 17**0.5 - 2 / (3 * 2**0.5), 1 / 17**0.5 - 2 / (3 * 2**0.5), 1 / (3 * 2**0.5)
    assert float(neural_collapse(w, u, 3)) == pytest.approx((a**2 + b**2 + 2 * c**2) ** 0.5, abs=1e-12)
    # Gradient against the closed form, and none at a head of zeros, where eq. (51) is not defined.
    w = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    value = neural_collapse(w, u, 3)
    (g,) = torch.autograd.grad(value, w)
    wanted, gradient_wanted = collapse(w.detach().numpy(), u.numpy())
    assert float(value.detach()) == pytest.approx(wanted, abs=1e-12)
    np.testing.assert_allclose(g.numpy(), gradient_wanted, atol=1e-12)
    zero = torch.zeros(3, 5, requires_grad=True)
    (g,) = torch.autograd.grad(neural_collapse(zero, u.float(), 3), zero)
    assert g.tolist() == torch.zeros(3, 5).tolist()


@pytest.mark.parametrize("algorithm", ["flute", "flute-star"])
@pytest.mark.parametrize("model", [network, lambda: seeded(TwoLayer), lambda: seeded(Linear, (4,), 3)])
def test_the_same_everywhere(algorithm: str, model: Any) -> None:
    """Also for a body that is no chain or empty, and when only some take part."""
    settings = SETTINGS | {"rounds": 2, "participation": 0.6}
    runs = {e: train_whole(algorithm, problem(), model=model(), **(settings | {"engine": e})) for e in ENGINES}
    for engine in EXACT:
        assert runs[engine].sha == runs["serial"].sha
    assert_same_run(runs["serial"], runs["batched"], 1e-9)


def test_what_travels() -> None:
    """Up: body, head and the classes. Down: the body to all, and the participants' heads after the server's step."""
    run = train("flute", problem(), model=network(), **SETTINGS)
    body, weight, bias, classes = 25, 15, 3, 3
    assert run.history[0]["bytes_up"] == 3 * 8 * (body + weight + bias + classes)
    assert run.history[0]["bytes_down"] == 3 * 8 * (body + weight)
    assert set(run.shared) == set(BODY)


def test_a_head_of_two_layers_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3))
    with pytest.raises(ModelError, match=r"FLUTE needs a model whose head is one nn.Linear inside it, not 2.bias, 2"):
        train("flute", problem(), model=model, head="2,3", **SETTINGS)
    with pytest.raises(ModelError, match=r"FLUTE needs a model whose head is one nn\.Linear"):
        train("flute", problem(), model=nn.Linear(4, 3), **SETTINGS)


def test_an_update_without_its_classes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FLUTE.client_update
    monkeypatch.setattr(FLUTE, "client_update", lambda *a: {n: t for n, t in whole(*a).items() if n != "flute/classes"})
    with pytest.raises(UpdateError, match="client 0 in round 1 lacks the tensor 'flute/classes'"):
        train("flute", problem(), model=network(), **SETTINGS)


@pytest.mark.parametrize("algorithm", ["flute", "flute-star"])
def test_learns(algorithm: str) -> None:
    rounds = 10 if algorithm == "flute" else 4
    run = train(
        algorithm, "digits", clients=20, classes_per_client=5, rounds=rounds, eval_every=rounds, engine="batched"
    )
    assert run.personal_accuracy["mean"] > 0.65
