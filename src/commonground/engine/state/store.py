"""Personal tensors of all clients, keyed by client, without a Python object per client."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from commonground.algorithms import Tensors

__all__ = ["PersonalStore", "digest"]


def digest(tensors: Tensors) -> str:
    """sha256 over tensors in the order of their names: name, type, shape and bytes of each."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(value.numpy().tobytes())
    return sha.hexdigest()


class PersonalStore:
    """One slab per tensor name, a row per client that has taken part; all others still have the initial values.

    Memory grows with the clients that took part, and reading or writing a client does not depend on how many exist.

    Args:
        clients: number of clients.
        initial: a client's tensors before its first round.
    """

    def __init__(self, clients: int, initial: Tensors) -> None:
        self.initial = {name: value.detach().clone() for name, value in initial.items()}
        self._slot = np.full(clients, -1, dtype=np.int32)
        self._used = 0
        self._slabs = {name: value.new_empty((0, *value.shape)) for name, value in self.initial.items()}
        self._initial_digest = digest(self.initial)

    def get(self, client: int) -> Tensors:
        """A client's tensors, by name; not to be changed in place."""
        slot = int(self._slot[client])
        return self.initial if slot < 0 else {name: slab[slot] for name, slab in self._slabs.items()}

    def put(self, client: int, tensors: Tensors) -> None:
        """Replace a client's tensors by copies of the given ones."""
        if not self.initial:
            return
        if self._slot[client] < 0:
            self._slot[client] = self._used
            self._used += 1
            self._reserve()
        slot = int(self._slot[client])
        for name, slab in self._slabs.items():
            slab[slot] = tensors[name].detach()

    def _reserve(self) -> None:
        for name, slab in self._slabs.items():
            if self._used > len(slab):
                grown = slab.new_empty((max(self._used, 2 * len(slab), 8), *slab.shape[1:]))
                grown[: len(slab)] = slab
                self._slabs[name] = grown

    def gather(self, clients: Sequence[int]) -> Tensors:
        """Tensors of several clients, stacked on a leading axis, as copies."""
        slots = torch.from_numpy(self._slot[np.asarray(clients, dtype=np.int64)].astype(np.int64))
        gathered: Tensors = {}
        for name, slab in self._slabs.items():
            start = self.initial[name]
            if len(slab) == 0:
                gathered[name] = start.expand(len(slots), *start.shape).clone()
                continue
            rows = slab[slots.clamp(min=0)]
            rows[slots < 0] = start
            gathered[name] = rows
        return gathered

    def digest(self, client: int) -> str:
        """sha256 of a client's tensors."""
        return self._initial_digest if self._slot[client] < 0 else digest(self.get(client))

    def state(self) -> Tensors:
        """All a checkpoint needs: which row is whose, and the rows in use (views, not copies)."""
        return {"slot": torch.from_numpy(self._slot)} | {
            f"rows/{name}": slab[: self._used] for name, slab in self._slabs.items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what :meth:`state` gave."""
        self._slot = state["slot"].numpy().copy()
        self._used = int((self._slot >= 0).sum())
        self._slabs = {name: state[f"rows/{name}"].clone() for name in self.initial}
