"""The lines of ``rounds.jsonl``: one a round, added as one write, known by their sha256."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commonground.engine.state.files import sync_file, write_atomically
from commonground.errors import RunError

__all__ = ["RoundLines"]


class RoundLines:
    """The file, which need not be there yet.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sha = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of the lines that were kept or written here."""
        return self._sha.hexdigest()

    def rows(self) -> list[dict[str, Any]]:
        """The rounds written so far; a line cut short by a crash is left out."""
        rows: list[dict[str, Any]] = []
        for line in self._content().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict) or row.get("round") != len(rows) + 1:
                break
            rows.append(row)
        return rows

    def keep(self, rounds: int, sha256: str | None = None) -> list[dict[str, Any]]:
        """Cut off the lines after a round.

        Args:
            rounds: lines to keep.
            sha256: of these lines as they were written.

        Returns:
            The rows.

        Raises:
            RunError: they are not what was written.
        """
        whole = self._content()
        kept = _first(whole, rounds)
        self._sha = hashlib.sha256(kept)
        if sha256 is not None:
            self.check(rounds, sha256)
        if kept != whole:
            write_atomically(self.path, kept)
        return self.rows()

    def check(self, rounds: int, sha256: str) -> None:
        """Raise a RunError if the lines up to a round are not what the run wrote."""
        if hashlib.sha256(_first(self._content(), rounds)).hexdigest() != sha256:
            raise RunError(
                f"'{self.path}' is not what the run wrote: of the {rounds} lines that belong to the checkpoint, some "
                "were changed or are missing; put it back or start again in another --out"
            )

    def replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write all lines anew; a checkpoint that knows them must follow."""
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        write_atomically(self.path, content)
        self._sha = hashlib.sha256(content)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one round, as one write.

        Raises:
            RunError: it cannot be written; the file is as before.
        """
        line = (json.dumps(row) + "\n").encode()
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                before = os.fstat(descriptor).st_size
                if os.write(descriptor, line) < len(line):
                    os.ftruncate(descriptor, before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise RunError(f"'{self.path}' cannot be written: {error.strerror or error}") from None
        self._sha.update(line)

    def sync(self) -> None:
        """Bring the lines to the disk."""
        if self.path.is_file():
            sync_file(self.path)

    def _content(self) -> bytes:
        return self.path.read_bytes() if self.path.is_file() else b""


def _first(content: bytes, lines: int) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:lines])
