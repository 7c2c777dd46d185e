"""Which models of a private run have left the server, and which answers may have reached it.

A round that is repeated may release a second model.

The clients are sent a round's model for its test before the round is in a checkpoint. If the server is lost then, the
round is repeated, and with other answers it has another outcome. With the server's noise that is another one as well
(:func:`~commonground.privacy.noise_for_numbers`), and both releases count.

Where clients add the noise themselves, their answers count once they are asked for, whether the round is done or not.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from commonground.algorithms import Tensors
from commonground.engine.state.digests import digest
from commonground.engine.state.files import sync_folder
from commonground.engine.state.folder import ASKED_ROUNDS, RELEASES
from commonground.errors import RunError

__all__ = ["last_asked", "note_asked", "note_release", "releases"]


def note_release(folder: Path, round: int, shared: Tensors) -> None:
    """Write down, for good, that a round's outcome leaves the server.

    Raises:
        RunError: it cannot be written.
    """
    _note(folder / RELEASES, {"round": round, "sha256": digest(shared)})


def note_asked(folder: Path, round: int) -> None:
    """Write down, for good, that clients are asked for answers with noise of their own.

    Raises:
        RunError: it cannot be written.
    """
    _note(folder / ASKED_ROUNDS, {"round": round})


def _note(path: Path, what: dict[str, Any]) -> None:
    line = json.dumps(what) + "\n"
    try:
        first = not path.is_file()
        torn = not first and not path.read_bytes().endswith(b"\n")  # what was being written then never left
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n" * torn + line)
            file.flush()
            os.fsync(file.fileno())
        if first:
            sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"what left the server cannot be written down in '{path}': {error}") from None


def releases(folder: Path) -> dict[int, int]:
    """By round, how many outcomes have left the server; rounds of which nothing is written down are not there.

    Raises:
        RunError: the file is damaged.
    """
    released = {(round, str(of.get("sha256"))) for round, of in _lines(folder / RELEASES)}
    return dict(Counter(round for round, _ in released))


def last_asked(folder: Path) -> int:
    """The last round in which clients were asked for answers with noise of their own; 0 if there was none.

    Raises:
        RunError: the file is damaged.
    """
    return max((round for round, _ in _lines(folder / ASKED_ROUNDS)), default=0)


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """What is written down, by round; a last line that was being written when the server was lost is left out."""
    if not path.is_file():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.endswith("}")]
        return [(int(line["round"]), dict(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"'{path}' is damaged: {error}") from None
