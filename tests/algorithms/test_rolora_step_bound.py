"""RoLoRA's learning rate bounded by the frozen factor: by hand, in every engine, and off by default."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import commonground as cg
from commonground.algorithms.rolora import RoLoRA, largest_square
from commonground.errors import ConfigError
from tests.helpers import digits


def test_the_rate_by_hand() -> None:
    received = {
        "one.lora_A": torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),  # ‖A‖₂² = 9
        "one.lora_B": torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]]),  # 4
        "two.lora_A": torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]]),
        "two.lora_B": torch.tensor([[0.0, 0.5], [0.5, 0.0], [0.0, 0.0]]),
        "head.weight": torch.full((3, 3), 100.0),
    }
    client: Any = SimpleNamespace(lr=0.5, received=received)
    bounded = RoLoRA(step_bound=1.8)
    assert bounded.rate(client, 1) == pytest.approx(0.2)  # B is trained: 1.8 / 9
    assert bounded.rate(client, 2) == pytest.approx(0.45)  # A is trained: 1.8 / 4
    assert RoLoRA(step_bound=1.8, first="lora_A").rate(client, 1) == pytest.approx(0.45)
    client.lr = 0.1
    assert [bounded.rate(client, round) for round in (1, 2)] == [0.1, 0.1]
    assert RoLoRA().rate(client, 1) is None
    client.received = {"one.lora_A": torch.zeros(2, 3), "one.lora_B": torch.zeros(3, 2)}
    assert bounded.rate(client, 2) == 0.1  # nothing to overshoot


@pytest.mark.parametrize("shape", [(2, 7), (7, 2), (4, 4)])
def test_the_largest_square_is_that_of_the_spectral_norm(shape: tuple[int, int]) -> None:
    factor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert largest_square(factor) == pytest.approx(float(torch.linalg.matrix_norm(factor.double(), 2)) ** 2)


def train(bound: float | None, engine: str = "serial", **more: Any) -> Any:
    options: dict[str, Any] = {"head": "frozen"} | ({} if bound is None else {"step_bound": bound})
    settings: dict[str, Any] = {"rounds": 4, "lr": 0.5, "seed": 3, "momentum": 0.0, "dtype": "float64", **more}
    return cg.train(
        "rolora", digits(), model="low-rank", model_options={"rank": 4}, engine=engine, options=options, **settings
    )


def test_the_same_numbers_in_every_engine() -> None:
    serial = train(0.05, rounds=2)
    assert serial.summary["weights_sha256"] != train(None, rounds=2).summary["weights_sha256"]
    for engine in ("processes", "messages"):
        assert train(0.05, engine, rounds=2).summary["weights_sha256"] == serial.summary["weights_sha256"]
    for name, value in train(0.05, "batched", rounds=2).shared.items():
        torch.testing.assert_close(value, serial.shared[name], rtol=0, atol=1e-10)


def test_a_bound_that_is_never_reached_changes_nothing() -> None:
    assert train(1e9).summary["weights_sha256"] == train(None).summary["weights_sha256"]


def test_a_bounded_round_is_one_of_a_smaller_rate() -> None:
    start = largest_square(train(None, rounds=1).shared["lora_A"])  # A is frozen in the first round
    bounded, smaller = train(0.05, rounds=1), train(None, rounds=1, lr=0.05 / start)
    torch.testing.assert_close(bounded.shared["lora_B"], smaller.shared["lora_B"], rtol=1e-12, atol=0)


@pytest.mark.parametrize(("bound", "more", "says"), [
    (0.1, {"optimizer": "adam"}, r"step_bound=0.1 bounds steps of SGD; those of adam do not grow"),
    (0.1, {"body_lr": 1.0}, r"step_bound=0.1 bounds the rate of the factors, which --body-lr 1 would set by itself"),
    (0.0, {}, "step_bound"),
])  # fmt: skip
def test_refusals(bound: float, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        train(bound, **more)
