"""What runs in a process of its own: ``python -m benchmarks.peers.child find|run NAME PATH [WORK RESULT]``."""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.clock import Clock, Enough
from benchmarks.peers.common import Missing, Peer, Work, peer_named


def found(peer: Peer, path: Path | None) -> dict[str, Any]:
    """Its version, or why it cannot run."""
    try:
        return {"version": peer.find(path), "python": platform.python_version()}
    except (Missing, ImportError) as error:
        return {"missing": f"{error}" if isinstance(error, Missing) else f"it cannot be imported: {error}"}


def measured(peer: Peer, path: Path | None, work: Work) -> dict[str, Any]:
    """Seconds of its rounds and tests."""
    clock = Clock(work.rounds)
    with contextlib.suppress(Enough):
        peer.run(path, work, clock)
    return clock.figures()


def main(what: str, name: str, path: str, *more: str) -> None:
    """Do one of the two, and write its result as JSON."""
    peer, place = peer_named(name), Path(path) if path else None
    if what == "find":
        result, out = found(peer, place), more[0]
    else:
        result, out = measured(peer, place, Work.read(more[0])), more[1]
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
