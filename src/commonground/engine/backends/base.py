"""What an engine is: a way to carry out clients' rounds and tests. Every engine gives the same numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from commonground.algorithms import Tensors, Update
from commonground.engine.divergence import why_not_finite
from commonground.engine.evaluation import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.segment import Segment
from commonground.engine.state.store import PersonalStore
from commonground.errors import UpdateError

__all__ = [
    "CachedShared",
    "ClientResult",
    "Engine",
    "StoreEngine",
    "Which",
    "payload_bytes",
    "settle",
    "validate_update",
]

Which = Literal["personal", "global"]


@dataclass(frozen=True)
class ClientResult:
    """What comes of one client's round.

    Attributes:
        update: what it sent.
        loss: its mean training loss, perhaps still on its way from the device (:func:`settle` waits for it); None if it
            did not train.
        personal: its new personal tensors and state, where the engine keeps them centrally (simulation).
    """

    update: Update
    loss: float | Tensor | None
    personal: Tensors | None = None


def payload_bytes(tensors: Tensors) -> int:
    """Bytes of the tensors in a message."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def settle(setup: Setup, results: Sequence[ClientResult], round: int) -> list[ClientResult]:
    """Wait for a round's results, once for all: let nothing into the average that is not finite, complete and of the
    right shape, and read the losses.

    Raises:
        UpdateError: naming client, round and tensor.
    """
    for result in results:
        validate_update(setup, result, round)
    tensors = [value for r in results for value in (*r.update.tensors.values(), *(r.personal or {}).values())]
    flags = [torch.isfinite(value).all() for value in tensors]
    losses = [r.loss for r in results if isinstance(r.loss, Tensor)]
    # One transfer for all: each would wait for the device.
    fine = torch.stack([flag.to(setup.device) for flag in flags]).cpu().all() if flags else True
    read = iter(torch.stack(losses).tolist() if losses else [])
    settled = [replace(r, loss=next(read)) if isinstance(r.loss, Tensor) else r for r in results]
    if not bool(fine):
        for result in settled:
            _refuse_not_finite(setup, result, round)
    for result in settled:
        if result.loss is not None and not math.isfinite(result.loss):
            who = _who(setup, result, round)
            raise UpdateError(
                f"the training loss of {who} is not finite: {why_not_finite(setup, result.update.client)}"
            )
    return settled


def _who(setup: Setup, result: ClientResult, round: int) -> str:
    return f"client {setup.data.client_name(result.update.client)} in round {round}"


def _refuse_not_finite(setup: Setup, result: ClientResult, round: int) -> None:
    for place, tensors in (("update", result.update.tensors), ("personal state", result.personal or {})):
        for name, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                raise UpdateError(
                    f"the {place} of {_who(setup, result, round)} has a value in '{name}' that is not finite: "
                    f"{why_not_finite(setup, result.update.client)}"
                )


def validate_update(setup: Setup, result: ClientResult, round: int) -> None:
    """Refuse an update that is not complete, of the right shapes and types, and from a number of samples.

    Raises:
        UpdateError: naming client, round and tensor.
    """
    who = _who(setup, result, round)
    sent = result.update.tensors
    uploads = setup.algorithm.upload_state(setup.common, setup.groups)
    expected = {**setup.initial, **setup.initial_shared, **uploads}
    travelling = [*(name for name in setup.initial_shared if name not in setup.initial), *uploads]
    wanted = [*setup.groups.names(setup.algorithm.sends(round)), *travelling]
    needed = {*setup.groups.trainable(setup.algorithm.sends(round)), *uploads}
    if setup.algorithm.may_stay_silent and not sent:
        needed = set()
    for name in wanted:
        if name not in sent and name in needed:
            raise UpdateError(f"the update of {who} lacks the tensor '{name}'")
    for name, value in sent.items():
        if name not in wanted:
            raise UpdateError(f"the update of {who} holds the tensor '{name}', which this algorithm does not send")
        shape = tuple(expected[name].shape)
        if tuple(value.shape) != shape:
            raise UpdateError(f"the update of {who} has '{name}' of shape {tuple(value.shape)} instead of {shape}")
        if value.dtype != expected[name].dtype:
            raise UpdateError(f"the update of {who} has '{name}' as {value.dtype} instead of {expected[name].dtype}")
    if not (isinstance(result.update.samples, int) and result.update.samples >= 1):
        raise UpdateError(f"the update of {who} claims {result.update.samples!r} training samples")


class CachedShared(NamedTuple):
    """What a client still has of an earlier round: the round, and the shared tensors unchanged since."""

    round: int
    names: frozenset[str]


class Engine(ABC):
    """Carries out rounds.

    ``train`` leaves the clients' kept state as it was; ``commit`` makes the round's state current, so that a round
    that fails or is interrupted leaves nothing behind.
    """

    name: str

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.check_stop: Callable[[], None] = lambda: None
        self.note: Callable[[str], None] = lambda text: None
        self.known: Mapping[int, CachedShared] = {}
        self.last_rounds: npt.NDArray[np.int32] | None = None  # in which each client last took part, -1: none so far

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
    def evaluate(self, clients: Sequence[int], shared: Tensors, which: Which = "personal", round: int = 0) -> Scores:
        """Test models on each client's own test data.

        Args:
            clients: whose.
            shared: the shared tensors.
            which: each client's ``personal`` model, or the ``global`` one.
            round: rounds done, which keys what a method draws when it personalises for a test.
        """

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
