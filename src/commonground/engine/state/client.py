"""What one client of a federation keeps on its own machine: its state after every round that may be repeated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import numpy as np

from commonground.algorithms import Tensors
from commonground.engine.state.digests import digest_rows
from commonground.engine.state.files import remove_parts
from commonground.engine.state.segment import Segment
from commonground.errors import RunError

__all__ = ["ClientStates"]

Kind = Literal["round", "shared", "answer"]


class ClientStates:
    """Segments of one client: ``round-000005.safetensors`` is its own state after round 5,
    ``shared-000005.safetensors`` what the server sent it in that round, and ``answer-000005.safetensors`` what it
    answered, if it must not compute that again (:mod:`~commonground.engine.private.answers`).

    A state is kept until the server says that a later one is safe in its checkpoints.

    Args:
        folder: the client's own.
        client: its number.
        durable: whether files are synced; not in a temporary folder.
    """

    def __init__(self, folder: Path, client: int, *, durable: bool = True) -> None:
        self.folder = folder
        self.client = client
        self.durable = durable

    def rounds(self, kind: Kind = "round") -> dict[int, Path]:
        """The files of a kind, by round; what is named otherwise is none of them."""
        found = {
            p: re.fullmatch(rf"{kind}-(\d+)\.safetensors", p.name) for p in self.folder.glob(f"{kind}-*.safetensors")
        }
        return {int(match[1]): path for path, match in found.items() if match is not None}

    def newest(self, before: int) -> Tensors | None:
        """The client's state after the last round before ``before`` in which it took part, if there is one.

        Raises:
            RunError: the file is damaged.
        """
        found = {round: path for round, path in self.rounds().items() if round < before}
        return self._read(found[max(found)]) if found else None

    def after(self, last: int) -> Tensors | None:
        """The client's state after the last round that counted for it: what it kept of later ones, or what an earlier
        run left there, is none of it.

        Args:
            last: that round, 0 if there was none.

        Raises:
            RunError: the file is damaged, or the state is gone.
        """
        if not last:
            return None
        path = self.rounds().get(last)
        if path is None:
            raise RunError(f"client {self.client} no longer has its state of round {last} in '{self.folder}'")
        return self._read(path)

    def shared(self, round: int) -> Tensors | None:
        """What the server sent in a round, if it is still there.

        Raises:
            RunError: the file is damaged.
        """
        path = self.rounds("shared").get(round)
        return None if path is None else self._read(path)

    def answer(self, round: int) -> Tensors | None:
        """What the client answered in a round, if it is still there.

        Raises:
            RunError: the file is damaged.
        """
        path = self.rounds("answer").get(round)
        return None if path is None else self._read(path)

    def forget_answers(self, safe: int | None = None) -> None:
        """Drop the answers to rounds up to ``safe``, or all of them."""
        for round, path in self.rounds("answer").items():
            if safe is None or round <= safe:
                path.unlink()

    def keep(self, round: int, tensors: Tensors, kind: Kind = "round") -> None:
        """Write what belongs to a round.

        Raises:
            RunError: it cannot be written.
        """
        if not tensors:
            return
        path = self.folder / f"{kind}-{round:06d}.safetensors"
        stacked = {name: value.detach().unsqueeze(0) for name, value in tensors.items()}
        clients = np.array([self.client], dtype=np.int64)
        try:
            Segment.write(
                path, round, clients, digest_rows(stacked), tensors, lambda n, _: stacked[n], durable=self.durable
            )
        except OSError as error:
            raise RunError(
                f"client {self.client} cannot write its state to '{path}': {error.strerror or error}"
            ) from None

    def forget(self, round: int, safe: int, last: int | None = None) -> None:
        """Drop states that are repeated now (≥ ``round``), those older than the newest one up to ``safe``, and those of
        rounds after ``last``, if it is given, which did not count. An answer stays until its round is safe.
        """
        remove_parts(self.folder)
        self.forget_answers(safe)
        for kind in ("round", "shared"):
            states = self.rounds(kind)
            end = round if last is None else min(round, last + 1)
            old = [r for r in states if r <= safe and r < end]
            for r, path in states.items():
                if r >= end or (old and r < max(old)):
                    path.unlink()

    def _read(self, path: Path) -> Tensors:
        segment = Segment.open(path)
        if not path.stem.endswith(f"-{segment.round:06d}"):
            raise RunError(f"'{path}' cannot be read: it is the file of round {segment.round} under another name")
        if segment.clients.tolist() != [self.client]:
            raise RunError(f"'{path}' does not hold the state of client {self.client}")
        segment.check()
        tensors = {name: segment.read(name, np.array([0]))[0] for name in segment.initial}
        segment.close()
        return tensors
