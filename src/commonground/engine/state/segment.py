"""A segment: the rows of clients whose state changed, in one safetensors file.

It holds ``clients [k]`` (int64, ascending), ``rows/NAME [k, …]`` and ``digests [k, 32]``, the sha256 of every client's
row, so that a single client can be read and checked without reading the others. Its metadata holds a sha256 over
everything but the rows, and so, through their digests, over the rows as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from commonground.access import reason
from commonground.algorithms import Tensors
from commonground.engine.state.digests import digest_rows
from commonground.engine.state.files import TensorColumn, write_tensors
from commonground.errors import RunError

__all__ = ["CHUNK_BYTES", "Segment"]

FORMAT = "commonground-segment-1"

# Rows that are copied or checked are in memory this many bytes at a time.
CHUNK_BYTES = 1 << 26

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Segment:
    """A file of rows, with its index in memory.

    Attributes:
        path: of the file.
        round: after which the newest of its rows were written.
        clients: [k] whose rows they are, ascending.
        digests: [k, 32] sha256 of each row.
        initial: tensors that tell names, types and shapes of a row.
        sha256: over all of it.
        size: of the file, in bytes.
    """

    path: Path
    round: int
    clients: Rows
    digests: npt.NDArray[np.uint8]
    initial: Tensors
    sha256: str
    size: int
    _files: list[Any] = field(default_factory=list, repr=False)

    @classmethod
    def write(
        cls,
        path: Path,
        round: int,
        clients: Rows,
        digests: npt.NDArray[np.uint8],
        initial: Tensors,
        read: Callable[[str, Rows], Tensor],
        *,
        durable: bool = True,
    ) -> Segment:
        """Write a segment.

        Args:
            path, round, clients, digests, initial: as of the class.
            read: gives the rows [n, …] of a name for positions [n] in ``clients``.
            durable: see :func:`~commonground.engine.state.files.write_tensors`.
        """

        def column(name: str, start: Tensor) -> TensorColumn:
            size = max(1, CHUNK_BYTES // max(1, start.numel() * start.element_size()))
            parts = (read(name, np.arange(i, min(i + size, len(clients)))) for i in range(0, len(clients), size))
            return TensorColumn(start.dtype, (len(clients), *start.shape), parts)

        sha256 = _sha256(round, clients, digests, initial)
        tensors: dict[str, Tensor | TensorColumn] = {
            f"rows/{name}": column(name, start) for name, start in initial.items()
        }
        tensors |= {"clients": torch.from_numpy(clients), "digests": torch.from_numpy(digests)}
        metadata = {"format": FORMAT, "round": str(round), "sha256": sha256}
        write_tensors(path, tensors, metadata, durable=durable)
        return cls(path, round, clients, digests, initial, sha256, path.stat().st_size)

    @classmethod
    def open(cls, path: Path) -> Segment:
        """Read the index of a segment, and no row.

        Raises:
            RunError: it is missing or damaged.
        """
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise ValueError("it is no segment of clients' state as this version of CommonGround writes them")
                clients, digests = (file.get_tensor(name).clone().numpy() for name in ("clients", "digests"))
                found: Tensors = {}
                for key in file.keys():  # noqa: SIM118 (not a mapping)
                    if key.startswith("rows/"):
                        rows = file.get_tensor(key)
                        if len(rows) != len(clients):
                            raise ValueError(f"it has {len(rows)} rows of '{key[5:]}' for {len(clients)} clients")
                        found[key.removeprefix("rows/")] = rows.new_empty(rows.shape[1:])
            round, sha256 = int(metadata["round"]), metadata["sha256"]
            if clients.dtype != np.int64 or digests.dtype != np.uint8 or digests.shape != (len(clients), 32):
                raise ValueError("its index has another form")
            if sha256 != _sha256(round, clients, digests, found):
                raise ValueError("its index is not what was written")
        except (SafetensorError, OSError, KeyError, ValueError, TypeError, IndexError) as error:
            raise RunError(f"'{path}' cannot be read: {reason(error, path)}") from None
        return cls(path, round, clients, digests, found, sha256, path.stat().st_size)

    def fits(self, clients: int, initial: Tensors) -> bool:
        """Whether its rows can be those of a run's clients."""
        inside = not len(self.clients) or (self.clients[0] >= 0 and self.clients[-1] < clients)
        return bool(inside) and _layout(initial) == _layout(self.initial)

    def read(self, name: str, rows: Rows) -> Tensor:
        """Some rows [n, …] of a tensor, as copies; the others are not read. The file stays open until :meth:`close`.

        Raises:
            RunError: the file is gone.
        """
        try:
            if not self._files:
                self._files.append(safe_open(self.path, "pt"))
            if len(rows) == 1:
                start = int(rows[0])
                one: Tensor = self._files[0].get_slice(f"rows/{name}")[start : start + 1]
                return one.clone()
            # A view of the mapped file: only the pages of the chosen rows are read.
            many: Tensor = self._files[0].get_tensor(f"rows/{name}")
            return many[torch.from_numpy(rows)]
        except (SafetensorError, OSError) as error:
            raise RunError(f"'{self.path}' cannot be read: {reason(error, self.path)}") from None

    def close(self) -> None:
        """Give back the mapped file, and with it the memory that was read of it."""
        self._files.clear()

    def check(self, rows: Rows | None = None) -> None:
        """Compare rows (by default all) with their digests.

        Raises:
            RunError: a row is not what was written.
        """
        rows = np.arange(len(self.clients)) if rows is None else rows
        size = max(1, CHUNK_BYTES // max(1, sum(v.numel() * v.element_size() for v in self.initial.values())))
        for part in np.split(rows, range(size, len(rows), size)):
            if len(part) and self.initial:
                found = digest_rows({name: self.read(name, part) for name in self.initial})
                self.close()
                wrong = (found != self.digests[part]).any(1)
                if wrong.any():
                    client = int(self.clients[part[wrong][0]])
                    raise RunError(f"'{self.path}' is damaged: the state of client {client} is not what was written")


def _layout(tensors: Tensors) -> list[tuple[str, torch.dtype, Sequence[int]]]:
    return sorted((name, value.dtype, tuple(value.shape)) for name, value in tensors.items())


def _sha256(round: int, clients: Rows, digests: npt.NDArray[np.uint8], initial: Tensors) -> str:
    sha = hashlib.sha256(f"{FORMAT} {round}\n".encode())
    for name, dtype, shape in _layout(initial):
        sha.update(f"{name} {dtype} {tuple(shape)}\n".encode())
    sha.update(np.ascontiguousarray(clients).tobytes())
    sha.update(np.ascontiguousarray(digests).tobytes())
    return sha.hexdigest()
