"""How the largest magnitude of every tensor of a round is found: on the host by its two ends, elsewhere by a norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from commonground.engine.backends.checks import _ends, _largest, _magnitudes

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("look", [_ends, _magnitudes])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_largest_magnitude(look: Callable[[list[Tensor]], list[tuple[Tensor, ...]]], dtype: torch.dtype) -> None:
    values = [[1.0, -3.0, 2.0], [0.0], [-2.0, -1.0], [NAN, 1.0], [1.0, NAN], [INF, 0.0], [0.0, -INF], [NAN, INF]]
    found = [_largest([float(end) for end in ends]) for ends in look([torch.tensor(v, dtype=dtype) for v in values])]
    assert found == pytest.approx([3.0, 0.0, 2.0, NAN, NAN, INF, INF, NAN], nan_ok=True)
