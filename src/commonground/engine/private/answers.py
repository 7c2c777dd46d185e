"""What a client with noise of its own has answered: once a round, and what is asked again is given again.

ε counts the noise of one answer a round. Whoever got two, to other tensors or under other settings, could take the mean
of them or subtract one from the other; so the answer is kept with what it was given to, and never computed again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonground.algorithms import Tensors
from commonground.engine.private.secret import ASKED
from commonground.engine.state.client import ClientStates
from commonground.engine.state.digests import digest
from commonground.engine.state.files import write_atomically
from commonground.errors import RunError, UpdateError

__all__ = ["Given", "GivenAnswers"]

OVER = "over"
_SENT, _OWN = "sent ", "own "


@dataclass(frozen=True)
class Given:
    """A client's answer to a round.

    Attributes:
        samples, loss: as it told them.
        sent: the update's tensors, noise and all.
        own: the client's state after the round.
    """

    samples: int
    loss: float | None
    sent: Tensors
    own: Tensors


class GivenAnswers:
    """A client's answers, in its folder, as long as the server may ask for them again.

    Args:
        states: the client's files.
        name: the client's.
    """

    def __init__(self, states: ClientStates, name: str) -> None:
        self.states, self.name = states, name

    def given(self, round: int, shared: Tensors, own: Tensors) -> Given | None:
        """The answer that a round was given to these tensors; None if it was given none.

        Raises:
            UpdateError: it was given one to other tensors, or it is no longer kept.
            RunError: what is kept cannot be read.
        """
        entry = self._entries().get(str(round))
        if entry is None:
            return None
        if not isinstance(entry, dict) or entry.get("to") != _of(shared, own):
            raise UpdateError(
                f"client {self.name} answered round {round} to other tensors, and a second answer would tell more "
                "than its ε says"
            )
        tensors = self.states.answer(round) or {}
        if len(tensors) != entry["tensors"]:
            raise UpdateError(f"client {self.name} answered round {round}, and no longer has what it sent")
        parts = (
            {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
            for part in (_SENT, _OWN)
        )
        return Given(entry["samples"], entry["loss"], *parts)

    def keep(self, round: int, shared: Tensors, own: Tensors, answer: Given) -> None:
        """Keep an answer before it is sent, and what it was given to.

        Raises:
            RunError: it cannot be written.
        """
        tensors = {_SENT + name: value for name, value in answer.sent.items()}
        tensors |= {_OWN + name: value for name, value in answer.own.items()}
        self.states.keep(round, tensors, "answer")
        about = {"to": _of(shared, own), "samples": answer.samples, "loss": answer.loss, "tensors": len(tensors)}
        self._write({**self._entries(), str(round): about})  # last: without it there was no answer

    @property
    def rounds(self) -> list[int]:
        """Which rounds were given an answer."""
        return sorted(map(int, self._entries()))

    def close(self) -> None:
        """Give none of the answers again, now that the run is over."""
        if self._path.is_file():
            self._write(dict.fromkeys(self._entries(), OVER))
        self.states.forget_answers()

    @property
    def _path(self) -> Path:
        return self.states.folder / ASKED

    def _entries(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._path.read_text("utf-8"))) if self._path.is_file() else {}
        except (OSError, ValueError) as error:
            raise RunError(f"'{self._path}', which says what was asked, cannot be read: {error}") from None

    def _write(self, entries: Mapping[str, Any]) -> None:
        self.states.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(dict(entries)))


def _of(shared: Tensors, own: Tensors) -> str:
    return digest({**shared, **{_OWN + name: value for name, value in own.items()}})
