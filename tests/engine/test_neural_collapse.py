"""The NC2 metrics against worked numbers (Liu et al. 2024, App. C.2)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from commonground.algorithms import make_algorithm
from commonground.config import RunConfig
from commonground.engine.neural_collapse import global_nc2, local_nc2, nc2_metrics
from commonground.engine.prepare import prepare_setup
from commonground.errors import ModelError
from tests.algorithms.reference import network, problem
from tests.helpers import seeded


def simplex(classes: int, features: int) -> Any:
    """Rows √(k/(k−1)) (I − 11ᵀ/k) Pᵀ with orthonormal P (Definition B.1)."""
    rng = np.random.default_rng(classes)
    p = np.linalg.qr(rng.normal(size=(features, classes)))[0]
    return math.sqrt(classes / (classes - 1)) * (np.eye(classes) - 1 / classes) @ p.T


def stacked(*heads: Any) -> torch.Tensor:
    return torch.from_numpy(np.stack(heads))


def test_a_simplex_of_all_classes_is_globally_collapsed() -> None:
    weights = stacked(simplex(4, 6), 3.0 * simplex(4, 6))
    everything = torch.ones(2, 4)
    assert global_nc2(weights, everything) == pytest.approx(0, abs=1e-12)
    assert local_nc2(weights, everything) == pytest.approx(0, abs=1e-12)


def test_a_simplex_of_the_own_classes_is_locally_collapsed() -> None:
    """Zero for m′ = 2; for m = 4 the target is ((3/4, −1/4), (−1/4, 3/4)) / √3 beside ((1/2, −1/2), (−1/2, 1/2))."""
    head = np.zeros((4, 6))
    head[[1, 3]] = simplex(2, 6)
    present = torch.tensor([[0.0, 1.0, 0.0, 1.0]])
    assert local_nc2(stacked(head), present) == pytest.approx(0, abs=1e-12)
    same, other = 1 / 2 - 3 / 4 / math.sqrt(3), -1 / 2 + 1 / 4 / math.sqrt(3)
    assert global_nc2(stacked(head), present) == pytest.approx(math.sqrt(2 * same**2 + 2 * other**2), abs=1e-12)


def test_two_clients_by_hand() -> None:
    """H₁ᵀH₁ = diag(1, 1, 0) with classes 0 and 1; H₂ᵀH₂ = diag(1, 1, 1) with all three."""
    one, two = np.diag([1.0, 1.0, 0.0]), np.eye(3)
    present = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    a, b = 1 / math.sqrt(2) - 2 / 3 / math.sqrt(2), 1 / 3 / math.sqrt(2)  # m = 3: 1/√(m−1) = 1/√2
    first = math.sqrt(2 * a**2 + 2 * b**2)
    c, d = 1 / math.sqrt(3) - 2 / 3 / math.sqrt(2), 1 / 3 / math.sqrt(2)
    second = math.sqrt(3 * c**2 + 6 * d**2)
    assert global_nc2(stacked(one, two), present) == pytest.approx((first + second) / 2, abs=1e-12)
    e, f = 1 / math.sqrt(2) - 1 / 2, 1 / 2  # m′ = 2
    third = math.sqrt(2 * e**2 + 2 * f**2)
    assert local_nc2(stacked(one, two), present) == pytest.approx((third + second) / 2, abs=1e-12)


def test_clients_of_one_class_have_no_local_metric() -> None:
    weights = stacked(simplex(3, 4), simplex(3, 4))
    assert local_nc2(weights, torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])) == pytest.approx(0, abs=1e-12)
    assert math.isnan(local_nc2(weights[:1], torch.tensor([[0.0, 1.0, 0.0]])))


@pytest.mark.parametrize("algorithm", ["fedrep", "fedavg", "fedrod"])
def test_metrics_of_a_run(algorithm: str) -> None:
    """Personal heads, one shared head for all, and the personal one of two."""
    config = RunConfig.make({"algorithm": algorithm, "dtype": "float64"})
    setup = prepare_setup(config, problem(), network(), make_algorithm(algorithm, {}))
    clients = [2, 0]
    rng = torch.Generator().manual_seed(0)
    personal = {
        name: torch.randn(2, *value.shape, dtype=value.dtype, generator=rng)
        for name, value in setup.initial_personal.items()
    }
    got = nc2_metrics(setup, setup.initial_shared, personal, clients)
    name = "head.personal.weight" if algorithm == "fedrod" else "head.weight"
    weights = personal[name] if name in personal else torch.stack([setup.initial_shared[name]] * 2)
    present = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    assert got == {"global_nc2": global_nc2(weights, present), "local_nc2": local_nc2(weights, present)}


def test_a_deep_head_is_refused() -> None:
    from torch import nn

    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3)))
    config = RunConfig.make({"algorithm": "fedrep", "head": "2,3", "dtype": "float64"})
    setup = prepare_setup(config, problem(), model, make_algorithm("fedrep", {}))
    heads = {n: torch.stack([v] * 3) for n, v in setup.initial_personal.items()}
    with pytest.raises(ModelError, match="a head of one linear layer, and this one has 2"):
        nc2_metrics(setup, setup.initial_shared, heads, [0, 1, 2])
