"""What an engine is: a way to carry out clients' rounds and tests. Every engine gives the same numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from commonground.algorithms import Tensors
from commonground.engine.backends.checks import check_scores
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.segment import Segment
from commonground.engine.state.store import PersonalStore

__all__ = [
    "CachedShared",
    "Engine",
    "StoreEngine",
    "Which",
    "payload_bytes",
]

Which = Literal["personal", "global", "validation"]
"""What is tested: each client's own model or the global one, on test rows; or the former, where there is one, else the
latter, on validation rows."""


def payload_bytes(tensors: Tensors) -> int:
    """Bytes of the tensors in a message."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


class CachedShared(NamedTuple):
    """What a client need not be sent.

    Attributes:
        round: that it last took part in, from which it still has shared tensors; 0 for none.
        names: of shared tensors that are unchanged since, or that it works out by itself.
        steps: tensors that it is sent for that.
    """

    round: int
    names: frozenset[str]
    steps: Tensors


class Engine(ABC):
    """Carries out rounds.

    ``train`` leaves the clients' kept state as it was; ``commit`` makes the round's state current, so that a round
    that fails or is interrupted leaves nothing behind.
    """

    name: str
    sends_parts = False  # whether it cuts tensors by itself to what a client holds of them (``Algorithm.held_part``)

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.check_stop: Callable[[], None] = lambda: None
        self.note: Callable[[str], None] = lambda text: None
        self.remark = ""  # a sentence about why it was taken, where a faster one was passed over
        self.known: Mapping[int, CachedShared] = {}
        self.back_to: int | None = None  # an earlier round than those of checkpoints that the run may go back to
        self.last_rounds: npt.NDArray[np.int32] | None = None  # in which each client last took part, -1: none so far
        self.saved_every_round = False  # whether a checkpoint is wanted after each round
        self.missing: dict[int, str] = {}  # participants whose round does not count, and why, where that is borne
        self.untested: dict[int, str] = {}  # likewise of the last test, of clients' own models if they have any

    @abstractmethod
    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """The round of the given clients, in their order.

        Args:
            round: 1-based round.
            clients: their numbers.
            shared: tensors sent to all of them.
            extra: tensors sent to single clients.
        """

    @abstractmethod
    def commit(self, round: int, results: Sequence[ClientResult], replies: Mapping[int, Tensors] | None = None) -> None:
        """Make the personal tensors of these results current, overwritten by the server's replies."""

    @abstractmethod
    def evaluate(
        self,
        clients: Sequence[int],
        shared: Tensors,
        which: Which = "personal",
        round: int = 0,
        *,
        detailed: bool = False,
    ) -> Scores:
        """Test models on each client's own test data.

        Args:
            clients: whose.
            shared: the shared tensors.
            which: models and rows.
            round: rounds done, which keys what a method draws when it personalises for a test.
            detailed: tell the finer figures as well (:attr:`~commonground.engine.setup.Setup.fine`).

        Raises:
            UpdateError: a client's figures are not finite, or cannot be.
        """

    def believable(self, scores: Scores, round: int, which: Which = "personal") -> Scores:
        """The scores themselves, if they can be (see :func:`~commonground.engine.backends.checks.check_scores`)."""
        check_scores(self.setup, scores, round, which)
        return scores

    @abstractmethod
    def digest(self, client: int) -> str:
        """sha256 of a client's personal tensors."""

    @abstractmethod
    def save(self, folder: Path, round: int) -> list[Segment]:
        """Write what a checkpoint after ``round`` has to keep of the clients, as far as it is not in the folder yet.

        Returns:
            The segments that hold it.
        """

    @abstractmethod
    def load(self, segments: Sequence[Segment], round: int) -> None:
        """Go back to a checkpoint taken after ``round``, with the segments that :meth:`save` returned."""

    @abstractmethod
    def states(self) -> Callable[[int], Tensors]:
        """How a finished run reads a client's personal tensors and state, also after :meth:`close`."""

    def again(self, round: int) -> None:
        """A round, and those after it, are going to be computed once more, as a plan does."""

    def close(self) -> None:
        """Give back processes and files."""


class StoreEngine(Engine):
    """An engine in which one process holds all personal state (simulation)."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.store = PersonalStore(setup.data.clients, setup.initial_personal)

    def commit(self, round: int, results: Sequence[ClientResult], replies: Mapping[int, Tensors] | None = None) -> None:
        """See :meth:`Engine.commit`."""
        for result in results:
            reply = (replies or {}).get(result.update.client, {})
            self.store.put(result.update.client, {**(result.personal or {}), **reply})

    def digest(self, client: int) -> str:
        """See :meth:`Engine.digest`."""
        return self.store.digest(client)

    def save(self, folder: Path, round: int) -> list[Segment]:
        """See :meth:`Engine.save`."""
        return self.store.save(folder, round)

    def load(self, segments: Sequence[Segment], round: int) -> None:
        """See :meth:`Engine.load`."""
        self.store.load(segments)

    def states(self) -> Callable[[int], Tensors]:
        """See :meth:`Engine.states`."""
        return self.store.get
