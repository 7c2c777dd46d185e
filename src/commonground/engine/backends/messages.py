"""Server and clients as separate objects that exchange nothing but bytes.

This is the algorithm as it runs on a network, in one process: each client owns its data and a folder for its personal
tensors, rebuilds the model from the run's configuration, and answers messages. The server never sees a personal
tensor.

A client keeps the state of every round it took part in until the server says that a later one is safe in its
checkpoints; a task of round t starts from the newest state before t. So a server that falls back to a checkpoint and
repeats rounds gets the same answers.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from commonground.algorithms import Tensors, Update
from commonground.data.part import part_of
from commonground.engine.backends.base import CachedShared, Engine, Which
from commonground.engine.backends.checks import who
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.fine_answers import fine_of_answer
from commonground.engine.backends.message_client import MessageClient
from commonground.engine.backends.message_kinds import (
    Acknowledged,
    Answer,
    Digest,
    Digested,
    Evaluate,
    Reply,
    Tested,
    Train,
    TrainAnswer,
    read_answer,
)
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.fine_scores import FineScores
from commonground.engine.held_parts import parts_of, with_zeros
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.client import ClientStates
from commonground.engine.state.segment import Segment
from commonground.errors import UpdateError
from commonground.quoting import quoted

__all__ = ["MessageEngine"]

A = TypeVar("A", bound=Answer)
R = TypeVar("R")


class MessageEngine(Engine):
    """The server's side of the message transport.

    Args:
        setup: the run.
        folder: parent of the clients' folders; a temporary one by default.
        deliver: carries a message to a client and brings the answer; by default to :class:`MessageClient` objects in
            this process.
    """

    name = "messages"
    sends_parts = True

    def __init__(
        self, setup: Setup, folder: Path | None = None, deliver: Callable[[int, bytes], bytes] | None = None
    ) -> None:
        super().__init__(setup)
        self.folder = Path(tempfile.mkdtemp(prefix="commonground-clients-")) if folder is None else Path(folder)
        # A temporary folder goes with the engine, which a finished run keeps to read the clients' tensors.
        self._remove = weakref.finalize(self, shutil.rmtree, self.folder, True) if folder is None else None
        self._read_later = False
        self.deliver = deliver or self._to_client
        self._round = 0
        self._saved = 0  # round of the last checkpoint
        self._safe = 0  # and of the one before, to which the run may still fall back
        self._before: dict[int, int] = {}  # what the next says before the present round
        self._counted: dict[int, int] = {}  # the round in which each client last took part, of those done here

    def _to_client(self, number: int, message: bytes) -> bytes:
        data = part_of(self.setup.data, [number])
        setup = self.setup.on(data)
        setup.prepare_model()
        folder = self.folder / f"client-{number}"
        return MessageClient(setup, number, folder, durable=self._remove is None).handle(message)

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """See :meth:`Engine.train`."""
        self.missing = {}

        def question(client: int) -> bytes:
            known = self.known.get(client, CachedShared(0, frozenset(), {}))
            news = {name: value for name, value in shared.items() if name not in known.names}
            safe = self._safe if self.back_to is None else min(self._safe, self.back_to)
            task = Train(round=round, safe=safe, since=known.round or None, last=self._last(client))
            news = parts_of(self.setup.algorithm, news, client)
            return pack(task.model_dump(), {**news, **known.steps, **(extra or {}).get(client, {})})

        def result(client: int, done: TrainAnswer, tensors: Tensors) -> ClientResult:
            if (done.client, done.round) != (client, round):
                whose = f"the answer of {who(self.setup, client, round)}"
                raise UpdateError(f"{whose} cannot be used: it is that of client {done.client} in round {done.round}")
            setup, whose = self.setup, f"the update of {who(self.setup, client, round)}"
            whole = with_zeros(setup.algorithm, tensors, setup.initial | setup.initial_shared, client, whose)
            return self._admitted(ClientResult(Update(client, done.samples, setup.moved(whole)), done.loss), round)

        results = self._ask(clients, question, TrainAnswer, round, result)
        self._round = round
        self._before = dict(self._counted)
        self._counted |= dict.fromkeys(results, round)
        return list(results.values())

    def commit(self, round: int, results: Sequence[ClientResult], replies: Mapping[int, Tensors] | None = None) -> None:
        """Send the replies; the clients keep their own state, and a repeated round replaces it."""
        tensors = dict(replies or {})
        self._ask(
            list(tensors), lambda c: pack(Reply(round=round).model_dump(), tensors[c]), Acknowledged, round, _plain
        )
        for client in self.missing:
            self._uncount(client)

    def _uncount(self, client: int) -> None:
        """A client's present round does not count."""
        self._counted[client] = self._before.get(client, 0)

    def evaluate(
        self,
        clients: Sequence[int],
        shared: Tensors,
        which: Which = "personal",
        round: int = 0,
        *,
        detailed: bool = False,
    ) -> Scores:
        """See :meth:`Engine.evaluate`; every client tests itself."""
        messages: dict[int, bytes] = {}
        shapes: dict[str, tuple[int, ...]] = {}

        def question(client: int) -> bytes:
            last = self._last(client)
            if last not in messages:  # the same for all who took part in the same round
                task = Evaluate(round=round, which=which, last=last, detailed=detailed)
                messages[last] = pack(task.model_dump(), shared)
            return messages[last]

        def score(client: int, answer: Tested, told: Tensors) -> Scores:
            fine = self._fine(answer, told, detailed, f"the answer of {who(self.setup, client, round)}")
            shapes.update({} if shapes else self._score_shapes(answer))
            self._check_shapes(answer, shapes, client, round)
            sums = {name: np.array([answer.sums[name]], dtype=np.float64) for name in shapes}
            numbers = (np.array([client]), np.array([answer.count]), np.array([answer.loss]))
            return self.believable(Scores(*numbers, sums, self.setup.data.task, fine), round, which)

        return self._joined(clients, self._ask(clients, question, Tested, round, score), round)

    def _joined(self, clients: Sequence[int], scores: Mapping[int, Scores], round: int) -> Scores:
        """The clients' tests as one; here all of them have answered."""
        return Scores.join([scores[client] for client in clients])

    def _fine(self, answer: Tested, told: Tensors, detailed: bool, whose: str) -> FineScores | None:
        """What a client tells in detail, if it was asked to."""
        if told and not detailed:
            raise UpdateError(f"{whose} cannot be used: it holds the tensor {quoted(next(iter(told)))}, and needs none")
        kinds, outputs = self.setup.fine, self.setup.data.classes
        return fine_of_answer(kinds, told, answer.count, outputs, whose) if detailed else None

    def _score_shapes(self, first: Tested) -> dict[str, tuple[int, ...]]:
        """By name, the shape of every score: as the task says, or, if it does not, as the first client says."""
        bounds = self.setup.data.task.score_bounds(self.setup.data.classes)
        return {name: b.shape for name, b in bounds.items()} or {name: np.shape(s) for name, s in first.sums.items()}

    def _check_shapes(self, answer: Tested, shapes: Mapping[str, tuple[int, ...]], client: int, round: int) -> None:
        whose = f"the answer of {who(self.setup, client, round)} cannot be used"
        if set(answer.sums) != set(shapes):
            named = ", ".join(sorted(answer.sums)) or "nothing"
            raise UpdateError(f"{whose}: its scores are {quoted(named)} instead of {quoted(', '.join(sorted(shapes)))}")
        for name, shape in shapes.items():
            if np.shape(answer.sums[name]) != shape:
                raise UpdateError(f"{whose}: its score '{name}' is of another shape than {list(shape)}")

    def digest(self, client: int) -> str:
        """See :meth:`Engine.digest`; computed by the client."""
        message = pack(Digest(round=self._round, last=self._last(client)).model_dump(), {})
        found = self._ask([client], lambda _: message, Digested, self._round, lambda c, answer, _: answer.digest)
        return found.get(client, "")

    # -- asking ---------------------------------------------------------------------------------------------------

    def _ask(
        self,
        clients: Sequence[int],
        question: Callable[[int], bytes],
        kind: type[A],
        round: int,
        make: Callable[[int, A, Tensors], R],
    ) -> dict[int, R]:
        """What is made of the clients' answers, in the clients' order.

        Args:
            clients: who is asked.
            question: the message to a client.
            kind: of the answers.
            round: for messages.
            make: of a client's answer and its tensors.

        Raises:
            UpdateError: naming client and round: there is no answer, or the answer cannot be used (see
                :meth:`_refuse`).
        """
        found: dict[int, R] = {}
        for client, answer in self._exchange(clients, question):
            try:
                found[client] = make(client, *self._read(client, answer, kind, round))
            except UpdateError as error:
                self._refuse(client, round, error)
        return {client: found[client] for client in clients if client in found}

    def _exchange(
        self, clients: Sequence[int], question: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | UpdateError]]:
        """Send every client its message; its answer, or why there is none. Here one client after the other."""
        for client in clients:
            self.check_stop()
            try:
                answer: bytes | UpdateError = self.deliver(client, question(client))
            except UpdateError as error:
                answer = error
            yield client, answer

    def _admitted(self, result: ClientResult, round: int) -> ClientResult:
        """A client's round as it came; the loop looks at all of them together."""
        return result

    def _refuse(self, client: int, round: int, error: UpdateError) -> None:
        """What becomes of a client whose answer cannot be used: here it ends the run."""
        raise error

    def _read(self, client: int, answer: bytes | UpdateError, kind: type[A], round: int) -> tuple[A, Tensors]:
        """A client's answer, and the tensors that came with it."""
        whose = who(self.setup, client, round)
        if isinstance(answer, UpdateError):
            raise UpdateError(f"{whose} gave no answer that can be used: {answer}")
        try:
            fields, tensors = unpack(answer)
            read = read_answer(kind, fields)
            if tensors and kind not in (TrainAnswer, Tested):
                raise UpdateError(f"it holds the tensor {quoted(next(iter(tensors)))}, and needs none")
        except UpdateError as error:
            raise UpdateError(f"the answer of {whose} cannot be used: {error}") from None
        return read, tensors

    def _last(self, client: int) -> int:
        """The round whose state a client must still have; 0 if it has not taken part."""
        before = 0 if self.last_rounds is None else int(self.last_rounds[client])
        return max(0, before, self._counted.get(client, 0))

    def save(self, folder: Path, round: int) -> list[Segment]:
        """Nothing: clients keep their own state. What they had at the checkpoint before is safe from now on."""
        self._safe, self._saved = self._saved, round
        return []

    def load(self, segments: Sequence[Segment], round: int) -> None:
        """See :meth:`Engine.load`."""
        self._round = self._saved = round
        self._safe = 0
        self._counted = {}

    def again(self, round: int) -> None:
        """See :meth:`Engine.again`: clients are asked for the state they had before it."""
        self._counted = {client: last for client, last in self._counted.items() if last < round}

    def states(self) -> Callable[[int], Tensors]:
        """See :meth:`Engine.states`; they are read from the clients' folders."""
        self._read_later = True
        return self._state_of

    def _state_of(self, client: int) -> Tensors:
        initial = self.setup.initial_personal
        kept = ClientStates(self.folder / f"client-{client}", client).after(self._last(client)) if initial else None
        return initial if kept is None else kept

    def close(self) -> None:
        """Remove the clients' folders if they are temporary; if :meth:`states` were asked for, with the last reader."""
        if self._remove is not None and not self._read_later:
            self._remove()


def _plain(client: int, answer: A, tensors: Tensors) -> A:
    return answer
