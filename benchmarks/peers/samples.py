"""The split that all train on: written once by us, read by every peer as tensors that are ready to be trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from benchmarks.peers.common import Work
    from commonground.data import FederatedDataset


def dealt(work: Work) -> FederatedDataset:
    """CIFAR-10 over clients of two classes each, or random pictures of the same size."""
    from commonground.data import Shards, Source, deal, load_data
    from commonground.data.normalization import STATISTICS

    clients = work.clients
    if not work.per_client:
        return load_data("cifar10", clients, classes_per_client=2, data_dir=work.data_dir or None, download=False)
    rng = np.random.default_rng(0)
    sizes = clients * work.per_client, clients * 10
    x = [rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in sizes]
    y = [np.arange(n) % 10 for n in sizes]
    source = Source(
        "random pictures", x[0], y[0], x[1], y[1], 10, tuple("0123456789"), preprocess=STATISTICS["imagenet"]
    )
    return deal(source, Shards(2), clients, 0)


def write(data: FederatedDataset, folder: Path) -> None:
    """Normalised pictures [n, 3, 32, 32], labels [n] and offsets [clients + 1] of both parts, in the clients' order."""
    ready = data.preprocess
    for part in ("train", "test"):
        index = getattr(data, f"{part}_index")
        pictures = getattr(data, f"x_{part}")[index].astype(np.float32) * np.float32(ready.scale)
        pictures = (pictures - np.asarray(ready.mean, np.float32)) / np.asarray(ready.std, np.float32)
        np.save(folder / f"x_{part}.npy", np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)))
        np.save(folder / f"y_{part}.npy", getattr(data, f"y_{part}")[index].astype(np.int64))
        np.save(folder / f"{part}_offsets.npy", getattr(data, f"{part}_offsets"))


@dataclass
class Part:
    """Training or test samples of all clients, those of one after those of another."""

    x: torch.Tensor
    y: torch.Tensor
    offsets: list[int]

    def rows(self, client: int) -> slice:
        """Where a client's are."""
        return slice(self.offsets[client], self.offsets[client + 1])

    def index(self, client: int) -> Any:
        """The same as numbers of rows."""
        return np.arange(self.offsets[client], self.offsets[client + 1])

    def of(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A client's own."""
        return self.x[self.rows(client)], self.y[self.rows(client)]


def read(folder: str | Path, part: str) -> Part:
    """One part of what :func:`write` wrote. Pictures are mapped, so that no program is charged for a second copy."""
    x, y = (np.load(Path(folder) / f"{name}_{part}.npy", mmap_mode="c") for name in "xy")
    offsets = np.load(Path(folder) / f"{part}_offsets.npy").tolist()
    return Part(torch.from_numpy(x), torch.from_numpy(y), offsets)
