"""Random tensors for a list of seeds at once: drawn on the CPU, whatever device they go to, so that all devices see the
same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from commonground.errors import ConfigError
from commonground.keys import torch_stream

__all__ = ["Device", "normal", "permutations"]

Device = torch.device | str


def normal(
    seeds: Sequence[int], purpose: str, *shape: int, ids: tuple[int, ...] = (), device: Device = "cpu"
) -> torch.Tensor:
    """Standard normal draws, each seed from a stream of its own.

    Args:
        seeds: S seeds; what a seed draws does not depend on the others beside it.
        purpose: what is drawn, for example ``"inputs"``.
        *shape: for one seed.
        ids: what else the stream is keyed by, for example the round.
        device: where the draws are put.

    Returns:
        [S, *shape], float64.

    Raises:
        ConfigError: there is no seed.
    """
    _some(seeds)
    draws = torch.empty(len(seeds), *shape, dtype=torch.float64, device="cpu")
    for index, seed in enumerate(seeds):
        draws[index].normal_(generator=torch_stream(seed, purpose, *ids))
    return draws.to(device)


def permutations(
    seeds: Sequence[int], purpose: str, count: int, ids: tuple[int, ...] = (), device: Device = "cpu"
) -> torch.Tensor:
    """A random order of ``count`` things per seed: [S, count], int64.

    Raises:
        ConfigError: there is no seed.
    """
    _some(seeds)
    streams = [torch_stream(seed, purpose, *ids) for seed in seeds]
    return torch.stack([torch.randperm(count, generator=stream, device="cpu") for stream in streams]).to(device)


def _some(seeds: Sequence[int]) -> None:
    if not isinstance(seeds, Iterable):
        raise ConfigError(f"seeds is {seeds!r}; it is a sequence of seeds, such as [0, 1, 2]")
    if len(seeds) == 0:
        raise ConfigError("there is no seed, and so nothing to draw; give one at least")
