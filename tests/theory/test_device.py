"""The theory lab says of every tensor it makes on which device, and its functions work on any one.

The experiments themselves run elsewhere in tests/papers/test_device.py; here are the ways through the code that they
seldom go.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import commonground
from commonground.papers import experiments
from commonground.statistics import as_array
from commonground.theory import features, rolora
from commonground.theory.flute import exact_heads, fedrep, flute, models, population_problem, sample_problem
from commonground.theory.flute import random_start as flute_start
from commonground.theory.linear import (
    draw_problem,
    draw_samples,
    drawn_extremes,
    least_squares,
    make_start,
    new_client_error,
    subset_extremes,
)
from tests.elsewhere import ELSEWHERE, FACTORIES, Elsewhere

SEEDS = [3, 4]
THEORY = Path(commonground.__file__).parent / "theory"


def factory_calls(path: Path) -> list[tuple[int, bool]]:
    """(line, whether it names a device) of the calls of PyTorch's factories in a file."""
    names = {factory.__name__ for factory in FACTORIES}
    return [
        (node.lineno, any(keyword.arg == "device" for keyword in node.keywords))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in names
    ]


def test_every_factory_call_names_its_device() -> None:
    own = [experiment.run for experiment in experiments.values() if experiment.float64]
    files = {*THEORY.rglob("*.py"), *(Path(str(sys.modules[run.__module__].__file__)) for run in own)}
    files |= {path.with_name("linear.py") for path in files if path.with_name("linear.py").exists()}
    calls = {path: factory_calls(path) for path in files}
    assert sum(map(len, calls.values())) > 30
    silent = [f"{path.name}:{line}" for path, found in calls.items() for line, named in found if not named]
    assert silent == []


def linear(device: Any, **other: Any) -> Any:
    return draw_problem(SEEDS, 4, 2, 6, device=device, **other)


def start(device: Any, name: Any) -> Any:
    return make_start(name, linear(device), draw_samples(linear(device), 5))


def deficient(device: Any) -> torch.Tensor:
    """Two unknowns that only their sum is known of, beside a problem of full rank."""
    x = torch.tensor([[[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]], device="cpu")
    y = torch.tensor([[2.0, 4.0, 2.0], [1.0, 2.0, 2.0]], device="cpu")
    return least_squares(x.double().to(device), y.double().to(device))


def feature_problem(device: Any) -> features.Problem:
    model = features.FeatureModel(8, 2, 1, 2, 2, 3, 1.3, 1.0, 0.5, 0.1, 0.1)
    return features.draw_problem(model, SEEDS, device)


def in_flute(device: Any, generator: Any = "spectrum") -> Any:
    return sample_problem(SEEDS, models(generator, SEEDS, 4, 5, device), 6)


CASES: dict[str, Callable[[Any], Any]] = {
    "least squares without full rank": deficient,
    "few subsets": lambda device: subset_extremes(linear(device), 3),
    "many subsets": lambda device: subset_extremes(draw_problem(SEEDS, 4, 2, 40, device=device), 20),
    "subsets that do not span": lambda device: drawn_extremes(linear(device), 1, 3),
    "new clients alone": lambda device: new_client_error(linear(device), None, 3, 2),
    "new clients": lambda device: new_client_error(linear(device), linear(device).B_star, 3, 2),
    "a start by projected gradient": lambda device: start(device, "projected-gradient"),
    "a start by moments": lambda device: start(device, "moments"),
    "a start by fresh moments": lambda device: start(device, "moments-fresh"),
    "a random start": lambda device: start(device, "random"),
    "a Gaussian start": lambda device: start(device, "gaussian"),
    "Gaussian models": lambda device: flute(
        in_flute(device, "gaussian"), 2, 3, 0.01, flute_start(in_flute(device), 2, 0.1)
    ),
    "diverging seeds": lambda device: flute(
        in_flute(device), 2, 60, 5.0, flute_start(in_flute(device), 2, 0.1), on_divergence="record"
    ),
    "known models": lambda device: fedrep(
        population_problem(SEEDS, models("spectrum", SEEDS, 4, 5, device)), 2, 3, 0.01, in_flute(device).moment[..., :2]
    ),
    "singular heads": lambda device: exact_heads(
        sample_problem(SEEDS, models("spectrum", SEEDS, 4, 5, device), 1), in_flute(device).moment[..., :2]
    ),
    "a random angle": lambda device: rolora.rolora(rolora.homogeneous(SEEDS, 2, 3, device=device), 3, 0.1, 5),
    "population loss": lambda device: rolora.population_loss(
        rolora.heterogeneous(SEEDS, 2, 3, device=device),
        *(2 * [rolora.homogeneous(SEEDS, 2, 3, device=device).a_start]),
    ),
    "next angle": lambda device: rolora.next_angle(rolora.homogeneous(SEEDS, 2, 3, device=device).a_star.abs(), 0.3),
    "sampled test error": lambda device: features.sampled_test_error(
        feature_problem(device), feature_problem(device).start[:, None], 20
    ),
    "gradient signals": lambda device: features.gradient_signals(feature_problem(device)),
    "both dynamics": lambda device: [
        features.descend(feature_problem(device), "local", 0.1, 3, dynamics=dynamics, units=4).test_error
        for dynamics in ("reduced", "full")
    ],
}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value if isinstance(value, list | tuple) else vars(value).values()
    return [part for part in parts if isinstance(part, torch.Tensor)]


@pytest.mark.parametrize("case", CASES)
def test_elsewhere_a_function_gives_the_same(case: str) -> None:
    here = CASES[case]("cpu")
    with Elsewhere():
        there = CASES[case](ELSEWHERE)
        assert {each.device for each in tensors_of(there)} == {ELSEWHERE}
    # LAPACK's last digits depend on where in memory its arguments lie.
    for one, other in zip(tensors_of(here), tensors_of(there), strict=True):
        np.testing.assert_allclose(as_array(other), as_array(one), rtol=1e-9, atol=1e-12)
