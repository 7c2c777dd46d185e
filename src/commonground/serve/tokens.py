"""Who may ask what: bearer tokens, of which the run's folder holds the hashes alone."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path

from commonground.engine.state.files import write_atomically
from commonground.errors import RunError

__all__ = ["ENROL", "Tokens"]

FILE = "tokens.json"

ENROL = "/enrol"
"""Whose token may add clients; a client of this name is ``client /enrol`` in the file, and so another."""


class Tokens:
    """Tokens of a run's clients, kept as sha256 in ``tokens.json`` (which only its owner may read).

    A token is 32 random bytes, so that its hash needs no salt and no slow function: there is nothing to guess.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._whose = self._read()

    def issue(self, client: str) -> str:
        """A new token for a client, or for adding clients (:data:`ENROL`). It is told now and never again.

        Tokens given out before stay valid; :meth:`revoke` ends them.
        """
        token = secrets.token_urlsafe(32)
        self._whose[_hash(token)] = client if client == ENROL else f"client {client}"
        self._write()
        return token

    def revoke(self, client: str) -> int:
        """End all tokens of a client; how many there were."""
        name = client if client == ENROL else f"client {client}"
        ended = [key for key, whose in self._whose.items() if whose == name]
        for key in ended:
            del self._whose[key]
        self._write()
        return len(ended)

    def whose(self, token: str) -> str | None:
        """The client whose token this is, :data:`ENROL`, or None for one that was never given out."""
        # Found by its hash: what a comparison's time may tell is about the hash, from which no token follows.
        found = self._whose.get(_hash(token))
        return None if found is None else found if found == ENROL else found.removeprefix("client ")

    def __len__(self) -> int:
        return len(self._whose)

    def _read(self) -> dict[str, str]:
        if not self.path.is_file():
            return {}
        try:
            read = json.loads(self.path.read_text("utf-8"))
            if not all(isinstance(k, str) and isinstance(v, str) for k, v in read.items()):
                raise ValueError("it holds something else than hashes")
            return dict(read)
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"'{self.path}' cannot be read: {str(error).splitlines()[0]}") from None

    def _write(self) -> None:
        write_atomically(self.path, json.dumps(self._whose, indent=1) + "\n")
        os.chmod(self.path, 0o600)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
