"""What the processor is called, on systems that say it and on those that do not."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from commonground import processor as module
from commonground.processor import processor, processor_name


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    processor_name.cache_clear()
    yield
    processor_name.cache_clear()


def test_linux_says_it_once_per_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 17\nmodel name\t: AMD  EPYC 9354 \nflags\t: avx2\n\n"
    (tmp_path / "cpuinfo").write_text(core * 2)
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert processor() == "AMD EPYC 9354 (AVX512)"


@pytest.mark.parametrize("text", [None, "processor\t: 0\nCPU implementer\t: 0x41\n", "model name\t:  \nstepping : 1\n"])
@pytest.mark.parametrize(("says", "name"), [("arm", "arm"), ("", "aarch64")])
def test_a_system_that_does_not_name_it(
    text: str | None, says: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: says)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert processor_name() == name
