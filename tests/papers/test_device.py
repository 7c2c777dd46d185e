"""Experiments that train no runs compute on the device they are asked to, and find there what they find on the CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground.cli import main
from commonground.literals import literal
from commonground.papers import experiments
from commonground.papers.outcome import Outcome
from commonground.papers.request import CPU, Request
from tests.elsewhere import ELSEWHERE, Away, Elsewhere
from tests.papers.fedrep.test_linear import TINY as FEDREP
from tests.papers.flute.test_linear import TINY as FLUTE
from tests.papers.local_steps.test_features import OWN, TINY
from tests.papers.rolora.test_theory import TINY as ROLORA

SIZES: dict[str, dict[str, Any]] = {
    name: {key: literal(value) for key, value in (setting.split("=", 1) for setting in settings)}
    for name, settings in {**FEDREP, **FLUTE, **ROLORA}.items()
}
SIZES |= {
    f"local-steps-{name}": TINY | {k: literal(v) if isinstance(v, str) else v for k, v in own.items()}
    for name, own in OWN.items()
}
OTHERS: dict[str, dict[str, Any]] = {  # ways through the code that the sizes above do not take
    "fedrep-fig3": {"samples": "fresh", "r": 0.2},
    "fedrep-fig1": {"r": 0.5, "start": "moments"},
    "fedrep-theorem1": {"n": 30, "r": [0.5], "scaling": "appendix"},
    "flute-fig3": {"sum_or_mean": "mean", "samples": [1]},
    "rolora-theory": {"draw": "fixed"},
    "local-steps-theorem1": {"dynamics": "full"},
}


def found(name: str, folder: Path, device: torch.device, **overrides: Any) -> Outcome:
    request = Request(folder, seeds=3, quiet=True, overrides={**SIZES[name], **overrides}, device=device)
    return experiments[name].run(request)


def test_the_sizes_are_of_all_such_experiments() -> None:
    assert set(SIZES) == {name for name, experiment in experiments.items() if experiment.float64}


@pytest.mark.parametrize(("name", "overrides"), [*((name, {}) for name in SIZES), *OTHERS.items()])
def test_elsewhere_the_same_is_found(name: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    here = found(name, tmp_path, CPU, **overrides)
    with Elsewhere():
        there = found(name, tmp_path, ELSEWHERE, **overrides)
    alike(dataclasses.asdict(there), dataclasses.asdict(here))


def alike(one: Any, other: Any) -> None:
    """Equal but for the rounding of numbers."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        alike(list(one.values()), list(other.values()))
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            alike(a, b)
    else:
        assert one == (pytest.approx(other, rel=1e-6, abs=1e-9) if isinstance(other, float) else other)


def test_elsewhere_is_as_strict_as_a_gpu() -> None:
    x = torch.arange(3.0)
    with Elsewhere():
        away = x.to(ELSEWHERE)
        assert isinstance(away @ away, Away)
        assert (away.device, x.device) == (ELSEWHERE, CPU)
        assert torch.zeros(2, device=away.device).device == away.new_ones(2).device == ELSEWHERE
        assert type(away.cpu()) is type(away.to("cpu")) is torch.Tensor
        assert away[torch.tensor([0], device="cpu")].device == ELSEWHERE
        assert (away * torch.tensor(2.0, device="cpu")).tolist() == [0.0, 2.0, 4.0]
        for mixed in (lambda: away + x, lambda: torch.stack([away, x]), lambda: x[away.long()]):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        with pytest.raises(RuntimeError, match="same device"):
            away[:] = x
        with pytest.raises(TypeError, match="fetch it"):
            away.numpy()
        with pytest.raises(TypeError, match="fetch it"):
            np.asarray(away)
        with pytest.raises(AssertionError, match=r"torch\.zeros without a device"):
            torch.zeros(2)
        for product in (lambda: x @ x, lambda: torch.linalg.qr(x[:, None])):
            with pytest.raises(AssertionError, match="on the CPU"):
                product()


@pytest.mark.parametrize(
    ("name", "device", "says"),
    [
        ("flute-fig3", "cuda", "the device is 'cuda', but PyTorch sees no CUDA GPU here"),
        ("flute-fig3", "mps", "flute-fig3 computes in float64, which the device 'mps' does not have"),
        ("flute-fig3", "gpu", "unknown device 'gpu'"),
        ("rolora-fig2", "cuda:0", "the device is 'cuda:0', but PyTorch sees no CUDA GPU here"),
    ],
)
def test_a_device_that_will_not_do(
    name: str,
    device: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    out = tmp_path / "out"
    assert main(["reproduce", name, "--device", device, "--out", str(out), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.strip().count("\n") == 0
    assert not out.exists()


def test_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert {experiments[name].device("auto") for name in ("rolora-fig2", "flute-fig3")} == {torch.device("cuda", 0)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {experiments[name].device("auto") for name in ("rolora-fig2", "flute-fig3")} == {CPU}
