"""Who may ask what: bearer tokens, of which the run's folder holds the hashes alone."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from commonground.engine.state.files import write_atomically
from commonground.engine.state.lock import locked_file
from commonground.errors import RunError
from commonground.name_lists import plain_name

__all__ = ["ENROL", "Enrolment", "Tokens"]

FILE = "tokens.json"

LOCK = ".tokens.lock"


class Enrolment(Enum):
    """What is no client: whoever adds them. Of a type of its own, so that no client's name can stand for it."""

    ENROL = "/enrol"


ENROL = Enrolment.ENROL
"""Whose token may add clients; a client of the name ``/enrol`` is ``client /enrol`` in the file, and so another."""


class Tokens:
    """Tokens of a run's clients, kept as sha256 in ``tokens.json`` (which only its owner may read).

    What another process writes there holds at once. A token is 32 random bytes, so that its hash needs no salt and no
    slow function: there is nothing to guess.

    Args:
        folder: of the run.

    Raises:
        RunError: the file cannot be read; any method may raise it as well.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._read_last: tuple[_State | None, dict[str, str]] = None, {}
        self._now()

    def issue(self, client: str | Enrolment) -> str:
        """A new token for a client, or for adding clients (:data:`ENROL`). It is told now and never again.

        Tokens given out before stay valid; :meth:`revoke` ends them.
        """
        token = secrets.token_urlsafe(32)
        with self._changing() as whose:
            whose[_hash(token)] = _written(client)
        return token

    def revoke(self, client: str | Enrolment) -> int:
        """End all tokens of a client, or all for adding clients (:data:`ENROL`); how many there were. Where nobody is
        called exactly so, those of whom the name is otherwise written (``ö`` as one character or as two).
        """
        with self._changing() as whose:
            asked = _written(client)
            ended = [key for key, one in whose.items() if one == asked]
            ended = ended or [key for key, one in whose.items() if plain_name(one) == plain_name(asked)]
            for key in ended:
                del whose[key]
        return len(ended)

    def whose(self, token: str) -> str | Enrolment | None:
        """The client whose token this is, :data:`ENROL`, or None for one that was never given out."""
        # Found by its hash: what a comparison's time may tell is about the hash, from which no token follows.
        found = self._now().get(_hash(token))
        return None if found is None else ENROL if found == ENROL.value else found.removeprefix("client ")

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> dict[str, str]:
        """What the file says; it is read again when it was replaced."""
        state = _state(self.path)  # first: what is replaced while it is read is read again next time
        before, whose = self._read_last
        if state != before:
            whose = self._read()
            self._read_last = state, whose  # together: several threads ask
        return whose

    @contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        """What the file says, to be changed; no other process changes it meanwhile."""
        with locked_file(self.path.with_name(LOCK), wait=True):
            whose = self._read()
            yield whose
            write_atomically(self.path, json.dumps(whose, indent=1) + "\n")
            os.chmod(self.path, 0o600)

    def _read(self) -> dict[str, str]:
        try:
            read = json.loads(self.path.read_text("utf-8"))
            if not all(isinstance(k, str) and isinstance(v, str) for k, v in read.items()):
                raise ValueError("it holds something else than hashes")
            return dict(read)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"'{self.path}' cannot be read: {str(error).splitlines()[0]}") from None


class _State(NamedTuple):
    """By which it is seen that a file was replaced."""

    inode: int
    changed: int
    size: int


def _state(path: Path) -> _State | None:
    try:
        found = path.stat()
    except OSError:
        return None  # as long as nothing was given out, there is no file
    return _State(found.st_ino, found.st_mtime_ns, found.st_size)


def _written(client: str | Enrolment) -> str:
    """As the file names it."""
    return ENROL.value if isinstance(client, Enrolment) else f"client {client}"


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
