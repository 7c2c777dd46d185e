"""Strided 1×1 convolutions of few channels: the same function, computed without what oneDNN gets wrong."""

import os
import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from commonground.models.build import prepare
from commonground.models.convolution import PointwiseConv2d, use_safe_convolutions

STEPS = """
import torch
from torch import nn
from commonground.models.build import prepare

torch.manual_seed(0)
torch.set_num_threads(1)
model = prepare(nn.Sequential(nn.Conv2d(4, 8, 1, stride=2)), (4, 32, 32), torch.float32)
for _ in range(20):
    images = torch.randn(32, 32, 32, 4).permute(0, 3, 1, 2)  # data are held with the channels last
    model(images).square().sum().backward()
print("done")
"""


def test_by_hand() -> None:
    """One channel, weight 3, bias 1, stride (2, 1): the pixels of rows 0 and 2, times 3, plus 1."""
    layer = nn.Conv2d(1, 1, 1, stride=(2, 1))
    with torch.no_grad():
        layer.weight.fill_(3.0)
        layer.get_parameter("bias").fill_(1.0)
    safe = use_safe_convolutions(layer)
    assert type(safe) is PointwiseConv2d
    pixels = torch.tensor([[[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]]])
    assert safe(pixels).tolist() == [[[[1.0, 4.0], [13.0, 16.0]]]]


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"stride": (1, 3)},
        {"stride": 2, "padding": 1},
        {"stride": (2, 3), "padding": (0, 2), "padding_mode": "reflect"},
        {"stride": 2, "padding": 1, "padding_mode": "circular", "bias": False},
        {"stride": 2, "groups": 2},
        {"stride": 2, "dilation": 3},
    ],
)
@pytest.mark.parametrize("size", [(8, 8), (7, 5)])
def test_the_function_of_torch(options: dict[str, Any], size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 6, 1, dtype=torch.float64, **options)
    safe = use_safe_convolutions(deepcopy(plain))
    assert type(safe) is PointwiseConv2d
    ours, theirs = (torch.randn(3, 4, *size, dtype=torch.float64, requires_grad=True) for _ in range(2))
    ours.data.copy_(theirs.data)
    for layer, x in ((safe, ours), (plain, theirs)):
        layer(x).sin().sum().backward()
    torch.testing.assert_close(safe(ours), plain(theirs), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-14, atol=1e-14)
    for one, other in zip(safe.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(safe(ours[0]), plain(theirs[0]), rtol=1e-14, atol=1e-14)  # one picture, no batch


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 4, 1, stride=2),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, (1, 3), stride=2),
        nn.Conv1d(4, 4, 1, stride=2),
        type("Mine", (nn.Conv2d,), {})(4, 4, 1, stride=2),
    ],
    ids=["channels", "stride", "size", "one_dimension", "own_class"],
)
def test_others_stay(layer: nn.Module) -> None:
    kind = type(layer)
    assert type(use_safe_convolutions(nn.Sequential(layer))[0]) is kind  # type: ignore[index]


def test_engines_get_them() -> None:
    model = prepare(nn.Sequential(nn.Conv2d(7, 4, 1, stride=2), nn.Flatten()), (7, 4, 4), torch.float32)
    assert type(model[0]) is PointwiseConv2d  # type: ignore[index]


@pytest.mark.skipif(sys.platform == "darwin", reason="oneDNN's instruction sets are those of x86")
def test_a_cpu_without_avx512() -> None:
    """What crashed: told to do without AVX-512, a plain layer's weight gradients are written past their workspace."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr[-1000:]
