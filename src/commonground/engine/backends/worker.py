"""What a worker does with a task, in whatever process it runs, and how the answer is taken where it was asked for."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from commonground.algorithms import Tensors, Update
from commonground.engine.backends.base import Which
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.serial import run_client, score_clients
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.errors import CommonGroundError
from commonground.registration import is_ours

__all__ = ["Answer", "Arrays", "RoundArrays", "Worker", "answered", "joined", "largest_first", "taken", "to_arrays",
           "to_tensors"]  # fmt: skip

Arrays = dict[str, np.ndarray[Any, Any]]

Answer = tuple[str, Any]
"""What becomes of a task: ``done``, ``error``, ``interrupted`` or ``fault``, and what there is to say of it."""


def to_arrays(tensors: Tensors) -> Arrays:
    """Tensors as arrays that share their memory: PyTorch would send files in their place."""
    return {name: value.detach().numpy() for name, value in tensors.items()}


def to_tensors(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Tensors:
    """Arrays as tensors that share their memory."""
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


class RoundArrays(NamedTuple):
    """A client's round, as it travels between processes; see :class:`ClientResult`."""

    client: int
    samples: int
    sent: Arrays
    loss: float | None
    kept: Arrays

    @classmethod
    def of(cls, result: ClientResult) -> RoundArrays:
        """A round of :meth:`Worker.train`."""
        update, loss = result.update, None if result.loss is None else float(result.loss)
        return cls(update.client, update.samples, to_arrays(update.tensors), loss, to_arrays(result.personal or {}))

    def result(self) -> ClientResult:
        """The same as the engine gives it."""
        return ClientResult(Update(self.client, self.samples, to_tensors(self.sent)), self.loss, to_tensors(self.kept))


class Worker:
    """One working model, and the shared tensors that it was last sent.

    Args:
        setup: data, model and algorithm.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.shared: Tensors = {}
        self._trainer = SequentialClient(setup)

    def train(self, round: int, client: int, personal: Tensors, extra: Tensors, *, key: int) -> ClientResult:
        """A client's round, from the shared tensors and those sent to it alone.

        Args:
            round: 1-based round.
            client: its position in the data set at hand.
            personal: what it kept.
            extra: what it alone is sent.
            key: its number in the federation.
        """
        return run_client(self._trainer, round, client, {**self.shared, **extra}, personal, key=key)

    def evaluate(
        self,
        clients: Sequence[int],
        stored: Tensors,
        which: Which,
        round: int,
        *,
        detailed: bool,
        key: int | None = None,
    ) -> Scores:
        """The test of a few clients; see :func:`~commonground.engine.backends.serial.score_clients`."""
        scores = score_clients(self._trainer, clients, self.shared, stored, which, round, key=key, detailed=detailed)
        return replace(scores, fine=scores.fine and scores.fine.bare())


def answered(work: Callable[[], Any]) -> Answer:
    """What becomes of a task: whatever a user's code raises must reach the asking process."""
    try:
        return "done", work()
    except CommonGroundError as error:
        return "error", (_portable(error), _chained(error))
    except KeyboardInterrupt:  # raised by a user's code, since a worker ignores the signal
        return "interrupted", None
    except Exception as error:  # a fault of a user's model or algorithm, with its place
        return "fault", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def _portable(error: CommonGroundError) -> CommonGroundError:
    """The error, or one of ours with its words, if it is of a class that another process cannot make of them."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a user's class does
        ours = next(cls for cls in type(error).__mro__ if issubclass(cls, CommonGroundError) and is_ours(cls))
        return ours(str(error))
    return error


def taken(answer: Answer) -> Any:
    """What a task gave.

    Raises:
        CommonGroundError: what the task raised, from what it was raised from.
        KeyboardInterrupt: a user's code raised it.
        RuntimeError: another exception, told with its place.
    """
    status, content = answer
    if status == "error":
        raise content[0] from content[1]
    if status == "interrupted":
        raise KeyboardInterrupt
    if status == "fault":
        raise RuntimeError(f"a worker process failed: {content}")
    return content


def _chained(error: CommonGroundError) -> BaseException | None:
    """What an error was raised from, with its traceback as a note; of a kind that the asking process knows."""
    cause = error.__cause__
    if cause is None:
        return None
    known = type(cause).__module__ == "builtins" and all(isinstance(a, str | int | float) for a in cause.args)
    sent = type(cause)(*cause.args) if known else RuntimeError(f"{type(cause).__name__} in a worker process")
    sent.add_note("".join(traceback.format_exception(cause)))
    return sent


def largest_first(setup: Setup, clients: Sequence[int]) -> list[int]:
    """Positions in ``clients``, the largest clients first, so that no worker is left waiting at the end."""
    sizes = setup.data.train_sizes
    return sorted(range(len(clients)), key=lambda i: -int(sizes[clients[i]]))


def joined(setup: Setup, parts: Sequence[Scores], *, detailed: bool) -> Scores:
    """Workers' scores as one, with the kinds of finer figures that did not travel with them."""
    if detailed:
        parts = [replace(p, fine=p.fine and replace(p.fine, kinds=setup.fine)) for p in parts]
    return Scores.gathered(parts, sum(len(part.clients) for part in parts))
