"""Clients' rows that no segment holds yet: in memory, and when they are many in an unnamed temporary file."""

from __future__ import annotations

import os
import tempfile
import weakref
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.algorithms import Tensors
from commonground.engine.state.files import raw_bytes
from commonground.errors import RunError

__all__ = ["ChangedRows"]

# Rows beyond this many bytes are moved out of memory.
MEMORY_BYTES = 1 << 29


class ChangedRows:
    """Rows numbered in the order in which they came.

    Args:
        initial: tensors that tell names, types and shapes.
    """

    def __init__(self, initial: Tensors) -> None:
        self.initial = initial
        self.folder: Path | None = None  # of the temporary file; by default the system's
        self._file: FileIO | None = None
        self._sizes = {name: value.numel() * value.element_size() for name, value in initial.items()}
        self._starts = dict(zip(self._sizes, np.cumsum([0, *self._sizes.values()]).tolist(), strict=False))
        self._row_bytes = sum(self._sizes.values())
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.used = 0
        self._slabs = {name: value.new_empty((0, *value.shape)) for name, value in self.initial.items()}
        if self._file is not None:
            self._file.close()
        self._file = None

    def add(self, tensors: Tensors) -> int:
        """Keep copies of a client's tensors as a new row; its number."""
        self._reserve(self.used + 1)
        self.put(self.used, tensors)
        self.used += 1
        return self.used - 1

    def put(self, row: int, tensors: Tensors) -> None:
        """Replace a row by copies of the given tensors."""
        given = {name: tensors[name].detach() for name in self.initial}
        for name, value in given.items():
            if self._file is None:
                self._slabs[name][row] = value
            else:
                whole = value.to(self.initial[name].dtype).expand(self.initial[name].shape)
                self._write(raw_bytes(whole), row * self._row_bytes + self._starts[name])

    def read(self, name: str, rows: npt.NDArray[np.int64]) -> Tensor:
        """Some rows [n, …] of a tensor, as copies."""
        if self._file is None:
            return self._slabs[name][torch.from_numpy(rows)]
        found = self.initial[name].new_empty((len(rows), *self.initial[name].shape))
        size = self._sizes[name]
        content = raw_bytes(found)
        for i, row in enumerate(rows.tolist()):
            place = content[i * size : (i + 1) * size]
            while place:
                offset = row * self._row_bytes + self._starts[name] + size - len(place)
                part = os.pread(self._file.fileno(), len(place), offset)
                place[: len(part)] = part
                place = place[len(part) :]
        return found

    def get(self, row: int) -> Tensors:
        """A row, by name; not to be changed in place."""
        if self._file is None:
            return {name: slab[row] for name, slab in self._slabs.items()}
        return {name: self.read(name, np.array([row]))[0] for name in self.initial}

    def _reserve(self, rows: int) -> None:
        if self._file is None and rows * self._row_bytes > MEMORY_BYTES:
            self._move_out()
        if self._file is None:
            for name, slab in self._slabs.items():
                if rows > len(slab):
                    most = MEMORY_BYTES // max(1, self._row_bytes)
                    grown = slab.new_empty((max(rows, min(max(2 * len(slab), 8), most)), *slab.shape[1:]))
                    grown[: len(slab)] = slab
                    self._slabs[name] = grown

    def _move_out(self) -> None:
        slabs = self._slabs
        try:
            self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 (as long as the rows live)
        except OSError as error:
            raise RunError(f"no temporary file can be made for the clients' state: {error.strerror}") from None
        weakref.finalize(self, self._file.close)
        for row in range(self.used):
            self.put(row, {name: slab[row] for name, slab in slabs.items()})
        self._slabs = {}

    def _write(self, content: memoryview, offset: int) -> None:
        assert self._file is not None
        while content:
            try:
                written = os.pwrite(self._file.fileno(), content, offset)
            except OSError as error:
                raise RunError(
                    f"the clients' state cannot be kept in '{self.folder or tempfile.gettempdir()}': {error.strerror}"
                ) from None
            content, offset = content[written:], offset + written
