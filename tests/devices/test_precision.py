"""Precision and threads are settings of a process: a run takes them up, and a user has his own again afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from commonground import precision as module
from commonground import train
from commonground.cli import main
from commonground.errors import ConfigError
from commonground.precision import computing_with, slow_precision
from commonground.processor import has_bf16, processor
from tests.helpers import Notes, TwoLayer, made_data, seeded


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


def test_after_overlapping_runs_a_new_thread_begins_with_the_process_own_number() -> None:
    """The number of a Python thread that has computed nothing is the last that any of them has set."""
    found: list[int] = []

    def read() -> None:
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()

    with a_process_of_its_own():
        torch.set_num_threads(2)
        opened, ended = threading.Event(), threading.Event()

        def other() -> None:
            with computing_with("fp32", threads=1):
                opened.set()
                ended.wait()

        with computing_with("fp32", threads=1):
            thread = threading.Thread(target=other)
            thread.start()
            opened.wait()
        ended.set()
        thread.join()
        read()
        assert (found, torch.get_num_threads()) == ([2], 2)


def test_a_run_in_tf32_and_another_that_is_not_do_not_share_a_process() -> None:
    with a_process_of_its_own(), computing_with("tf32"):
        with pytest.raises(ConfigError, match="another run of this process computes in tf32"):
            computing_with("fp32").__enter__()
        with computing_with("fp32", unless_open=True):  # a prediction
            assert torch.backends.cudnn.allow_tf32


def told_of(monkeypatch: pytest.MonkeyPatch, precision: str, has: bool) -> list[str]:
    """What a run says of its precision on a processor with or without instructions for bf16."""
    monkeypatch.setattr(module, "has_bf16", lambda: has)
    observer = Notes()
    settings: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "precision": precision, "device": "cpu"}
    train("fedavg", made_data(), model=seeded(TwoLayer), observer=observer, **settings)
    return [text for text in observer.said if "bf16" in text]


def test_a_run_in_bf16_says_where_a_processor_has_no_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 times as long as in fp32 was measured of a convolution (AVX2), and nothing had said why."""
    (text,) = told_of(monkeypatch, "bf16", has=False)
    assert text.startswith(
        f"this processor, {processor()}, has no instructions for bf16, so --precision bf16 is emulated"
    )
    assert not told_of(monkeypatch, "bf16", has=True)
    assert not told_of(monkeypatch, "fp32", has=False)
    assert not slow_precision("bf16", torch.device("cuda"))


def test_a_build_without_what_tells_of_bf16_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert has_bf16()


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_dry_run_says_it_too(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "has_bf16", lambda: False)
    asked = ["train", "fedavg", "--clients", "2", "--rounds", "1", "--device", "cpu", "--dry-run"]
    assert main([*asked, "--precision", precision, "--out", str(tmp_path / "out")]) == 0
    assert ("has no instructions for bf16" in capsys.readouterr().err) == (precision == "bf16")


def test_reproduction_in_bf16_says_it_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "has_bf16", lambda: False)
    asked = ["reproduce", "flute-table1", "--precision", "bf16", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert main([*asked, "--minutes", "1e-9"]) == 0  # nothing is measured
    assert "has no instructions for bf16" in capsys.readouterr().err
