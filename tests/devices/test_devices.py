"""The text of --device becomes a device that is there, or one sentence; what is moved there, and how it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest
import torch

from commonground import train
from commonground.data.inputs import to_device
from commonground.devices import computing_with, device_bytes_free, resolve_device
from commonground.errors import ConfigError
from tests.helpers import TwoLayer, made_data, seeded


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


# -- precision --------------------------------------------------------------------------------------------------------


def told(*asked: Callable[[], object]) -> list[object]:
    """What PyTorch says of its settings; where its older and newer ones were mixed it raises."""
    found: list[object] = []
    for one in asked:
        try:
            found.append(one())
        except RuntimeError:
            found.append("mixed")
    return found


def all_settings() -> list[object]:
    backends: Any = torch.backends
    newer = []
    if hasattr(backends.cudnn, "conv"):
        newer = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul]
    return told(
        torch.get_float32_matmul_precision,
        lambda: backends.cuda.matmul.allow_tf32,
        lambda: backends.cudnn.allow_tf32,
        *(partial(getattr, one, "fp32_precision") for one in newer),
    )


USERS: dict[str, Callable[[Any], object]] = {
    "nothing": lambda torch: None,
    "older": lambda torch: torch.set_float32_matmul_precision("high"),
    "medium": lambda torch: torch.set_float32_matmul_precision("medium"),
    "flag": lambda torch: setattr(torch.backends.cudnn, "allow_tf32", False),
    "newer": lambda torch: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "newer, all": lambda torch: setattr(torch.backends, "fp32_precision", "tf32"),
    "newer, one": lambda torch: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
}


@pytest.mark.parametrize("users", USERS)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_precision_and_threads_are_a_users_own_again(users: str, precision: str) -> None:
    if users.startswith("newer") and not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("PyTorch has these settings since 2.9")
    with a_process_of_its_own():
        USERS[users](torch)
        before, threads = all_settings(), torch.get_num_threads()
        with computing_with(precision, threads=3):
            tf32 = precision == "tf32"
            products = "high" if tf32 else "highest"
            assert all_settings()[:3] == [products, tf32, tf32]  # not mixed: a compiler asks for them
            assert set(all_settings()[3:]) <= {"tf32" if tf32 else "ieee"}
            assert torch.get_num_threads() == 3
        # Where PyTorch could not tell, there was nothing to put back.
        assert [now for now, was in zip(all_settings(), before, strict=True) if was != "mixed"] == [
            was for was in before if was != "mixed"
        ]
        assert torch.get_num_threads() == threads


@contextmanager
def a_process_of_its_own() -> Iterator[None]:
    """Settings as PyTorch has them at first, and as they were afterwards."""
    backends: Any = torch.backends
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        if hasattr(backends.cudnn, "conv"):
            backends.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = True
        torch.set_num_threads(threads)


def test_a_run_leaves_them_as_they_were() -> None:
    with a_process_of_its_own():
        torch.set_num_threads(2)
        torch.set_float32_matmul_precision("high")
        before = all_settings()
        train("fedavg", made_data(), model=seeded(TwoLayer), engine="serial", rounds=1, threads=1)
        assert all_settings() == before
        assert torch.get_num_threads() == 2


def test_overlapping_runs_of_two_threads_leave_it_as_it_was() -> None:
    with a_process_of_its_own():
        before = all_settings()
        first, second = computing_with("fp32"), computing_with("bf16")
        first.__enter__()
        within = all_settings()
        second.__enter__()
        first.__exit__(None, None, None)
        assert all_settings() == within != before  # the second still computes
        with computing_with("fp32", unless_open=True):
            assert all_settings() == within
        second.__exit__(None, None, None)
        assert all_settings() == before


def test_a_run_in_tf32_and_another_that_is_not_do_not_share_a_process() -> None:
    with a_process_of_its_own(), computing_with("tf32"):
        with pytest.raises(ConfigError, match="another run of this process computes in tf32"):
            computing_with("fp32").__enter__()
        with computing_with("fp32", unless_open=True):  # a prediction
            assert torch.backends.cudnn.allow_tf32
