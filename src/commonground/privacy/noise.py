"""Where noise comes from: from the run's seed, so that others can repeat a run, or from a secret, so that none can.

In a simulation everything is drawn by the run's seed. Whoever knows the seed can draw the same noise and subtract it,
so where privacy is real the noise must be :class:`SecretNoise` (``--dp-secret-noise``).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.keys import torch_stream

__all__ = ["SECRET_BYTES", "KeyedNoise", "NoiseSource", "SecretNoise", "noise_for_numbers"]

SECRET_BYTES = 32
"""Of the secret from which secret noise follows."""

_BLOCK = 1 << 20  # numbers that are drawn at once: 16 MB


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
    """Noise that follows from a secret of 256 bits and a key, by SHAKE-256: without the secret nobody can draw it.

    With it the same noise comes again, and it has to: a round that is repeated after a crash with other noise would be
    released twice, and the mean of two draws hides less than one. It comes again for the same numbers alone
    (:func:`noise_for_numbers`): the same noise on two different ones would be gone in their difference.

    Args:
        secret: 32 bytes; by default new ones of the operating system's entropy.
    """

    secret: bytes = field(default_factory=lambda: os.urandom(SECRET_BYTES), repr=False)

    def normal(self, shape: Sequence[int], *key: str | int) -> Tensor:
        """See :meth:`NoiseSource.normal`."""
        count = math.prod(shape)
        blocks = [self._block(min(_BLOCK, count - first), key, first) for first in range(0, count, _BLOCK)]
        return torch.from_numpy(np.concatenate([np.empty(0), *blocks]).reshape(tuple(shape)))

    def _block(self, count: int, key: Sequence[str | int], first: int) -> npt.NDArray[np.float64]:
        text = "\x1f".join(map(str, [*key, first]))
        whole = np.frombuffer(hashlib.shake_256(self.secret + text.encode()).digest(16 * count), dtype=np.uint64)
        uniform = ((whole >> np.uint64(11)) + 0.5) * 2.0**-53  # in (0, 1), 53 bits of each
        # Box and Muller 1958: a Rayleigh radius and an angle.
        drawn: npt.NDArray[np.float64] = np.sqrt(-2 * np.log(uniform[:count])) * np.cos(2 * np.pi * uniform[count:])
        return drawn


def noise_for_numbers(source: NoiseSource, *numbers: Mapping[str, Tensor]) -> NoiseSource:
    """Noise that is drawn for these numbers and no others; of a seed, which hides nothing, the source itself.

    Args:
        source: where noise comes from.
        *numbers: what it will be added to, and by what it is scaled, by name.
    """
    if not isinstance(source, SecretNoise):
        return source
    digest = hashlib.sha256(source.secret)
    for tensors in numbers:
        for name, tensor in sorted(tensors.items()):
            content = tensor.detach().cpu().contiguous()
            digest.update(f"{name}\x1f{content.dtype}\x1f{tuple(content.shape)}\x1f".encode())
            digest.update(content.view(-1).view(torch.uint8).numpy().tobytes())
    return SecretNoise(digest.digest())
