"""Personal tensors of all clients: rows of segments on disk, and in memory what changed since the last of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.algorithms import Tensors
from commonground.engine.state.changed import ChangedRows
from commonground.engine.state.digests import digest, digest_rows
from commonground.engine.state.segment import CHUNK_BYTES, Segment
from commonground.errors import RunError

__all__ = ["PersonalStore"]

# More segments than this, and the smaller half of them is merged into one.
MOST_SEGMENTS = 32

_INITIAL = -1  # slot of a client that has not changed since the start

Positions = npt.NDArray[np.int64]


class PersonalStore:
    """A row for every client that has taken part; all others still have the initial values.

    Four bytes per client say where its row is. :meth:`save` writes the rows that changed since the last one as a
    segment, so it costs what changed; a run that is never saved keeps them in memory or, when they are many, in an
    unnamed temporary file. Reading or writing a client does not depend on how many exist.

    Args:
        clients: number of clients.
        initial: a client's tensors before its first round.
    """

    def __init__(self, clients: int, initial: Tensors) -> None:
        self.initial = {name: value.detach().clone() for name, value in initial.items()}
        self._initial_digest = digest(self.initial)
        # -1: initial; 0, 1, …: rows of the segments, one segment after the other; -2, -3, …: changed rows 0, 1, …
        self._slot = np.full(clients, _INITIAL, dtype=np.int32)
        self._changed = ChangedRows(self.initial)
        self._segments: list[Segment] = []
        self._bases = np.zeros(1, dtype=np.int64)  # first row of each segment, and the number of all rows

    # -- one client, several clients ------------------------------------------------------------------------------

    def get(self, client: int) -> Tensors:
        """A client's tensors, by name; not to be changed in place."""
        slot = int(self._slot[client])
        if slot == _INITIAL:
            return self.initial
        if slot < _INITIAL:
            return self._changed.get(-2 - slot)
        return {name: rows[0] for name, rows in self.gather([client]).items()}

    def read(self, client: int) -> Tensors:
        """As :meth:`get`, compared with the digest that was written with it.

        Raises:
            RunError: the file of its segment is damaged.
        """
        slot = int(self._slot[client])
        if slot > _INITIAL:
            number, row = self._place(slot)
            self._segments[number].check(np.array([row]))
        return self.get(client)

    def read_several(self, clients: Sequence[int]) -> Tensors:
        """As :meth:`gather`, compared with the digests that were written with them.

        Raises:
            RunError: the file of a segment is damaged.
        """
        slots = self._slot[np.asarray(clients, dtype=np.int64)]
        slots = slots[slots > _INITIAL]
        numbers = np.searchsorted(self._bases, slots, "right") - 1
        for number in np.unique(numbers).tolist():
            self._segments[number].check(slots[numbers == number] - self._bases[number])
        return self.gather(clients)

    def kept(self, clients: Sequence[int]) -> list[int]:
        """Those of the clients that have a row: all others have the initial values."""
        return [client for client in clients if self._slot[client] != _INITIAL]

    def put(self, client: int, tensors: Tensors) -> None:
        """Replace a client's tensors by copies of the given ones."""
        if not self.initial:
            return
        slot = int(self._slot[client])
        if slot < _INITIAL:
            self._changed.put(-2 - slot, tensors)
        else:
            self._slot[client] = -2 - self._changed.add(tensors)

    def gather(self, clients: Sequence[int]) -> Tensors:
        """Tensors of several clients, stacked on a leading axis, as copies."""
        slots = self._slot[np.asarray(clients, dtype=np.int64)]
        sources = list(self._sources(slots))
        gathered = {name: self._rows(name, len(slots), sources) for name in self.initial}
        self._close()
        return gathered

    def digest(self, client: int) -> str:
        """sha256 of a client's tensors."""
        slot = int(self._slot[client])
        if slot == _INITIAL:
            return self._initial_digest
        if slot < _INITIAL:
            return digest(self._changed.get(-2 - slot))
        number, row = self._place(slot)
        return bytes(self._segments[number].digests[row]).hex()

    def _place(self, slot: int) -> tuple[int, int]:
        """Segment and row of a slot."""
        number = int(np.searchsorted(self._bases, slot, "right")) - 1
        return number, slot - int(self._bases[number])

    def _sources(
        self, slots: npt.NDArray[np.int32]
    ) -> Iterator[tuple[Positions, Callable[[str, Positions], Tensor], Positions]]:
        """What holds the rows of these slots: positions in ``slots``, how to read there, and the rows."""
        changed = np.flatnonzero(slots < _INITIAL)
        if len(changed):
            yield changed, self._changed.read, (-2 - slots[changed]).astype(np.int64)
        numbers = np.searchsorted(self._bases, slots, "right") - 1
        numbers[slots < 0] = -1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            here = np.flatnonzero(numbers == number)
            yield here, self._segments[number].read, slots[here] - self._bases[number]

    def _rows(
        self, name: str, count: int, sources: Sequence[tuple[Positions, Callable[[str, Positions], Tensor], Positions]]
    ) -> Tensor:
        start = self.initial[name]
        if len(sources) == 1 and len(sources[0][0]) == count:
            _, read, rows = sources[0]
            return read(name, rows)
        found = start.expand(count, *start.shape).clone()
        for here, read, rows in sources:
            found[torch.from_numpy(here)] = read(name, rows)
        return found

    def _close(self) -> None:
        for segment in self._segments:
            segment.close()

    # -- segments -------------------------------------------------------------------------------------------------

    def save(self, folder: Path, round: int) -> list[Segment]:
        """Write what changed since the last time as a segment.

        Segments without a row in use are left out of the answer, and where half of all rows are stale, or there are
        many segments, the rows in use of the old ones go into the new one. No file is removed here: one may belong to
        an earlier checkpoint.

        Args:
            folder: of the segments.
            round: rounds done, which names the file.

        Returns:
            The segments that hold the state, a later one's rows in place of an earlier one's.
        """
        changed = np.flatnonzero(self._slot < _INITIAL)
        if len(changed):
            merged = self._worth_merging(len(changed))
            clients = np.concatenate([changed, *(self._living(number) for number in merged)])
            clients.sort()
            slots = self._slot[clients]
            path = folder / f"round-{round:06d}.safetensors"
            segment = Segment.write(path, round, clients, self._digests(clients), self.initial, self._reader(slots))
            kept = [number for number in range(len(self._segments)) if number not in merged and self._lives(number)]
            self._slot[clients] = _INITIAL
            self._keep(kept)
            self._add(segment)
            self._changed.clear()
            self._changed.folder = folder
        return list(self._segments)

    def load(self, segments: Sequence[Segment]) -> None:
        """Go back to the state that :meth:`save` described with these segments.

        Raises:
            RunError: they hold the state of other clients.
        """
        self._slot.fill(_INITIAL)
        self._changed.clear()
        self._segments, self._bases = [], np.zeros(1, dtype=np.int64)
        for segment in segments:
            if not segment.fits(len(self._slot), self.initial):
                raise RunError(f"'{segment.path}' holds the state of another run's clients or of another model")
            self._changed.folder = segment.path.parent
            self._add(segment)

    def _add(self, segment: Segment) -> None:
        first = int(self._bases[-1])
        self._slot[segment.clients] = np.arange(first, first + len(segment.clients), dtype=np.int32)
        self._segments.append(segment)
        self._bases = np.append(self._bases, first + len(segment.clients))

    def _keep(self, numbers: Sequence[int]) -> None:
        """Drop the other segments, in which no row is in use, and number the rows anew."""
        stored = np.flatnonzero(self._slot > _INITIAL)
        old = np.searchsorted(self._bases, self._slot[stored], "right") - 1
        segments = [self._segments[number] for number in numbers]
        bases = np.concatenate([[0], np.cumsum([len(s.clients) for s in segments])]).astype(np.int64)
        shift = np.zeros(len(self._segments), dtype=np.int64)
        shift[numbers] = bases[:-1] - self._bases[list(numbers)]
        self._slot[stored] += shift[old].astype(np.int32)
        self._segments, self._bases = segments, bases

    def _living(self, number: int) -> Positions:
        """Clients whose row in a segment is the one in use."""
        first, end = self._bases[number], self._bases[number + 1]
        return np.flatnonzero((self._slot >= first) & (self._slot < end))

    def _lives(self, number: int) -> bool:
        return len(self._living(number)) > 0

    def _worth_merging(self, changed: int) -> set[int]:
        """Segments whose rows in use are to be written anew with the changed ones."""
        living = [len(self._living(number)) for number in range(len(self._segments))]
        used = [number for number, rows in enumerate(living) if rows]
        rows = sum(len(self._segments[number].clients) for number in used)
        if 2 * (rows - sum(living)) >= rows + changed:
            return set(used)
        if len(used) < MOST_SEGMENTS:
            return set()
        return set(sorted(used, key=lambda number: living[number])[: MOST_SEGMENTS // 2])

    def _reader(self, slots: npt.NDArray[np.int32]) -> Callable[[str, Positions], Tensor]:
        def read(name: str, positions: Positions) -> Tensor:
            rows = self._rows(name, len(positions), list(self._sources(slots[positions])))
            self._close()
            return rows

        return read

    def _digests(self, clients: Positions) -> npt.NDArray[np.uint8]:
        """Digests of the rows of clients [k, 32]; those of rows on disk are known."""
        slots = self._slot[clients]
        digests = np.empty((len(clients), 32), np.uint8)
        numbers = np.searchsorted(self._bases, slots, "right") - 1
        numbers[slots < 0] = -1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            here = np.flatnonzero(numbers == number)
            digests[here] = self._segments[number].digests[slots[here] - self._bases[number]]
        changed = np.flatnonzero(numbers < 0)
        size = max(1, CHUNK_BYTES // max(1, sum(v.numel() * v.element_size() for v in self.initial.values())))
        for part in np.split(changed, range(size, len(changed), size)):
            if len(part):
                rows = -2 - slots[part].astype(np.int64)
                digests[part] = digest_rows({name: self._changed.read(name, rows) for name in self.initial})
        return digests
