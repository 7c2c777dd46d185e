"""Random draws keyed by what they are for.

Every draw of a run is a function of (seed, purpose, ids…), where the ids are usually (round, client) and sometimes a
phase or an epoch. Nothing depends on how many draws were made before, so results do not depend on the engine, the
number of workers, the order of clients, or on whether a run was resumed.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.bit_generator import ISeedSequence

__all__ = ["key_of", "numpy_stream", "torch_stream"]


def _digest(seed: int, purpose: str, ids: tuple[int | str, ...]) -> bytes:
    text = "\x1f".join([str(seed), purpose, *map(str, ids)])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def numpy_stream(seed: int, purpose: str, *ids: int | str) -> np.random.Generator:
    """A NumPy generator (Philox, 128-bit key) for this purpose and these ids.

    Args:
        seed: the run's seed.
        purpose: what is drawn, for example ``"partition"``, ``"participants"`` or ``"batches"``.
        *ids: usually the round and the client.

    Returns:
        A fresh generator; equal arguments give equal draws, different ones independent draws.
    """
    return np.random.Generator(np.random.Philox(_Key(seed, purpose, ids)))  # type: ignore[arg-type]  # any ISeedSequence


class _Key(ISeedSequence):
    """The key as a seed: with ``key=`` NumPy asks the system for a random one too, which takes three times as long."""

    def __init__(self, seed: int, purpose: str, ids: tuple[int | str, ...]) -> None:
        self._words = np.frombuffer(_digest(seed, purpose, ids), dtype=np.uint64)

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[np.uint64]:
        """The two words of 64 bits that Philox asks for."""
        assert (n_words, dtype) == (2, np.uint64)
        return self._words


def torch_stream(seed: int, purpose: str, *ids: int | str) -> torch.Generator:
    """As :func:`numpy_stream`, for PyTorch on the CPU (weights and dropout masks are always drawn there, so that
    an accelerator sees the same numbers).
    """
    return torch.Generator().manual_seed(key_of(seed, purpose, *ids))


def key_of(seed: int, purpose: str, *ids: int | str) -> int:
    """The key of :func:`torch_stream` as a whole number below 2^63."""
    return int.from_bytes(_digest(seed, purpose, ids)[:8], "little") & (2**63 - 1)
