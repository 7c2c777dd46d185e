"""Which models of a private run have left the server: a round that is repeated may release a second one.

The clients are sent a round's model for its test before the round is in a checkpoint. If the server is lost then, the
round is repeated, and with other answers it has another outcome. With the server's noise that is another one as well
(:func:`~commonground.privacy.noise_for_numbers`), and both releases count.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from commonground.algorithms import Tensors
from commonground.engine.state.digests import digest
from commonground.engine.state.files import sync_folder
from commonground.engine.state.folder import RELEASES
from commonground.errors import RunError

__all__ = ["note_release", "releases"]


def note_release(folder: Path, round: int, shared: Tensors) -> None:
    """Write down, for good, that a round's outcome leaves the server.

    Raises:
        RunError: it cannot be written.
    """
    line = json.dumps({"round": round, "sha256": digest(shared)}) + "\n"
    path = folder / RELEASES
    try:
        first = not path.is_file()
        torn = not first and not path.read_bytes().endswith(b"\n")  # what was being written then never left
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n" * torn + line)
            file.flush()
            os.fsync(file.fileno())
        if first:
            sync_folder(folder)
    except OSError as error:
        raise RunError(f"what left the server cannot be written down in '{path}': {error}") from None


def releases(folder: Path) -> dict[int, int]:
    """By round, how many outcomes have left the server; rounds of which nothing is written down are not there.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / RELEASES
    if not path.is_file():
        return {}
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.endswith("}")]
        released = {(int(line["round"]), str(line["sha256"])) for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"'{path}' is damaged: {error}") from None
    return dict(Counter(round for round, _ in released))
