"""Random draws keyed by what they are for.

Every draw of a run is a function of (seed, purpose, ids…), where the ids are usually (round, client) and sometimes a
phase or an epoch. Nothing depends on how many draws were made before, so results do not depend on the engine, the
number of workers, the order of clients, or on whether a run was resumed.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

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
    key = np.frombuffer(_digest(seed, purpose, ids), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def torch_stream(seed: int, purpose: str, *ids: int | str) -> torch.Generator:
    """As :func:`numpy_stream`, for PyTorch on the CPU (weights and dropout masks are always drawn there, so that
    an accelerator sees the same numbers).
    """
    return torch.Generator().manual_seed(key_of(seed, purpose, *ids))


def key_of(seed: int, purpose: str, *ids: int | str) -> int:
    """The key of :func:`torch_stream` as a whole number below 2^63."""
    return int.from_bytes(_digest(seed, purpose, ids)[:8], "little") & (2**63 - 1)
