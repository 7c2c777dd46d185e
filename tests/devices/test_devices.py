"""The text of --device becomes a device that is there, or one sentence; what is moved there, and how it computes."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from commonground.data.inputs import to_device
from commonground.devices import device_bytes_free, resolve_device
from commonground.engine.clients.sequential import feature_chunk
from commonground.errors import ConfigError


def pretend(monkeypatch: pytest.MonkeyPatch, gpus: int = 0, apple: bool = False) -> None:
    """A machine with so many GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)


@pytest.mark.parametrize(
    ("text", "gpus", "apple", "expected"),
    [
        ("cpu", 0, False, "cpu"),
        ("cpu", 2, True, "cpu"),
        ("auto", 0, False, "cpu"),
        ("auto", 0, True, "cpu"),  # no float64 on Apple's GPUs: only when asked for
        ("auto", 2, True, "cuda:0"),
        ("cuda", 2, False, "cuda:0"),
        ("cuda:0", 1, False, "cuda:0"),
        ("cuda:1", 2, False, "cuda:1"),
        ("mps", 0, True, "mps:0"),
    ],
)
def test_a_device_that_is_there(
    text: str, gpus: int, apple: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, gpus, apple)
    assert resolve_device(text) == torch.device(expected)
    assert str(resolve_device(text)) == expected


@pytest.mark.parametrize(
    ("text", "gpus", "says"),
    [
        ("cuda", 0, "the device is 'cuda', but PyTorch sees no CUDA GPU here; use cpu or auto"),
        ("cuda:1", 0, "the device is 'cuda:1', but PyTorch sees no CUDA GPU here; use cpu or auto"),
        ("cuda:1", 1, "the device is 'cuda:1', but PyTorch sees one CUDA GPU (cuda:0) here"),
        ("cuda:7", 2, "the device is 'cuda:7', but PyTorch sees 2 CUDA GPUs (cuda:0 to cuda:1) here"),
        ("mps", 1, "the device is 'mps', but PyTorch sees no Apple GPU here; use cpu or auto"),
    ],
)
def test_a_device_that_is_not_there(text: str, gpus: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, gpus)
    with pytest.raises(ConfigError) as caught:
        resolve_device(text)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:01", "cuda:x", "cuda:٣", "cuda:0\n", "cpu:0", "mps:0", "meta", "xla"],
)
def test_no_device(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 4, True)
    with pytest.raises(ConfigError, match=r"^unknown device .*known are auto, cpu, cuda, cuda:INDEX and mps"):
        resolve_device(text)


def test_on_this_machine_auto_is_where_a_tensor_can_be() -> None:
    device = resolve_device("auto")
    assert torch.zeros(1, device=device).device == device


class Elsewhere:
    """What a tensor of a device is asked before it is moved; it cannot be pinned, as PyTorch's cannot."""

    def __init__(self, place: str) -> None:
        self.device, self.moved = torch.device(place), list[torch.device]()

    def pin_memory(self) -> Elsewhere:
        if self.device.type != "cpu":
            raise RuntimeError("only dense CPU tensors can be pinned")
        return self

    def to(self, device: torch.device, **_: bool) -> Elsewhere:
        self.moved.append(device)
        return self


@pytest.mark.parametrize(("place", "moves"), [("cpu", 1), ("cuda:0", 1), ("cuda:1", 0)])
def test_only_what_lies_on_the_host_is_pinned(place: str, moves: int) -> None:
    value = Elsewhere(place)
    moved: Any = to_device(cast(Any, value), torch.device("cuda", 1))
    assert moved is value
    assert len(value.moved) == moves


def test_what_pytorch_holds_for_later_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    assert device_bytes_free(torch.device("cuda", 0)) == 1500
    assert device_bytes_free(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("shape", "device", "rows"),
    [
        ((40, 32, 32, 3), "cpu", 25),
        ((40, 32, 32, 3), "cuda", (1 << 22) // 3072),
        ((40, 2048, 2048, 1), "cuda", 25),  # no fewer than on the host
        ((0, 32, 32, 3), "cuda", 25),
        ((40, 12), "cuda", 25),
    ],
)
def test_small_images_go_through_a_network_many_at_a_time_on_a_device(
    shape: tuple[int, ...], device: str, rows: int
) -> None:
    assert feature_chunk({"x": torch.empty(shape, device="meta")}, torch.device(device)) == rows
