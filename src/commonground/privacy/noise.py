"""Where noise comes from: from a key, so that a run can be repeated, or from the operating system, so that none can.

In a simulation everything is drawn by the run's seed. Whoever knows the seed can draw the same noise and subtract it,
so where privacy is real the noise must be :class:`SecretNoise` (``--dp-secret-noise``), which nobody can draw again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from commonground.keys import torch_stream

__all__ = ["KeyedNoise", "NoiseSource", "SecretNoise"]


class NoiseSource(Protocol):
    """Something that draws standard Gaussian noise."""

    def normal(self, shape: Sequence[int], *key: str | int) -> Tensor:
        """Independent draws of N(0, 1) in float64, on the host.

        Args:
            shape: how many.
            *key: what they are for; a key is used once.
        """


@dataclass(frozen=True)
class KeyedNoise:
    """Noise that follows from the run's seed and a key: equal in every engine and after a resume, and no secret.

    Args:
        seed: the run's.
    """

    seed: int

    def normal(self, shape: Sequence[int], *key: str | int) -> Tensor:
        """See :meth:`NoiseSource.normal`."""
        stream = torch_stream(self.seed, "dp noise", *key)
        return torch.randn(tuple(shape), generator=stream, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class SecretNoise:
    """Noise from the operating system's entropy, every number of it: other draws each time, known to nobody."""

    def normal(self, shape: Sequence[int], *key: str | int) -> Tensor:
        """See :meth:`NoiseSource.normal`; the key is not looked at."""
        count = math.prod(shape)
        whole = np.frombuffer(os.urandom(16 * count), dtype=np.uint64)
        uniform = ((whole >> np.uint64(11)) + 0.5) * 2.0**-53  # in (0, 1), 53 bits of each
        # Box and Muller 1958: a Rayleigh radius and an angle.
        drawn = np.sqrt(-2 * np.log(uniform[:count])) * np.cos(2 * np.pi * uniform[count:])
        return torch.from_numpy(drawn.reshape(tuple(shape)))
