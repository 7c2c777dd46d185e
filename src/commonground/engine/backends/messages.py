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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from commonground.algorithms import Tensors, Update
from commonground.data.part import part_of
from commonground.engine.backends.base import CachedShared, Engine, Which
from commonground.engine.backends.checks import who
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.fine_answers import fine_of_answer, fine_tensors
from commonground.engine.backends.message_kinds import (
    Answer,
    Digest,
    Digested,
    Evaluate,
    Kept,
    Reply,
    Tested,
    Train,
    Trained,
    read_answer,
    read_question,
)
from commonground.engine.backends.received import check_question, check_tensors
from commonground.engine.backends.serial import run_client, score_clients
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.evaluation import Scores
from commonground.engine.fine_scores import FineScores
from commonground.engine.setup import Setup
from commonground.engine.state.client import ClientStates
from commonground.engine.state.digests import digest
from commonground.engine.state.segment import Segment
from commonground.errors import UpdateError
from commonground.privacy import NoiseSource
from commonground.quoting import quoted

__all__ = ["MessageClient", "MessageEngine"]

A = TypeVar("A", bound=Answer)


class MessageClient:
    """A client of the federation: its own data, its own folder, and an answer to every message.

    Args:
        setup: the run on the client's side; its data set holds this one client.
        number: the client's number in the federation, which keys its draws.
        folder: where it keeps its personal tensors.
        durable: whether they have to outlast a power cut.
        noise: where the client's own noise comes from, whatever the run's settings say; with
            :class:`~commonground.privacy.SecretNoise` no server can draw and subtract it (``--dp-where client``).
    """

    def __init__(
        self, setup: Setup, number: int, folder: Path, *, durable: bool = True, noise: NoiseSource | None = None
    ) -> None:
        self.setup = setup
        self.noise = noise
        self.number = number
        self.states = ClientStates(folder, number, durable=durable)

    def handle(self, message: bytes) -> bytes:
        """Answer one message of the server.

        Where the server is elsewhere, whatever carries messages tells it of errors as ``pack({"error": text}, {})``.

        Raises:
            UpdateError: it is no message, or not one that this client can be sent; nothing is kept of it.
            RunError: the client has not what the run needs, or cannot keep it.
        """
        about = "cannot be used"
        try:
            fields, sent = unpack(message)
            question = read_question(fields)
            about = f"of round {question.round} {about}"
            check_question(self.setup, question, self.states)
            if isinstance(question, Train):
                sent = self._with_known(question, sent)
            check_tensors(self.setup, question, sent)
        except UpdateError as error:
            raise UpdateError(f"the server's message to client {self._name} {about}: {error}") from None
        answer, tensors = self._answer(question, sent)
        return pack(answer.model_dump(), tensors)

    def _answer(self, question: Train | Reply | Evaluate | Digest, sent: Tensors) -> tuple[Answer, Tensors]:
        """Do what a message that was checked asks for."""
        if isinstance(question, Train):
            return self._train(question, sent)
        personal = self._newest(question.round + 1, question.last if isinstance(question, Digest) else 0)
        if isinstance(question, Reply):
            self.states.keep(question.round, {**personal, **sent})
            return Kept(), {}
        if isinstance(question, Evaluate):
            return self._test(question, sent, personal)
        return Digested(digest=digest(personal)), {}

    def _train(self, task: Train, shared: Tensors) -> tuple[Trained, Tensors]:
        personal = self._newest(task.round, task.last)  # first, so that nothing goes if it is not there
        self.states.forget(task.round, task.safe)
        if self.setup.algorithm.clients_remember:
            names = self.setup.initial_shared
            self.states.keep(task.round, {n: v for n, v in shared.items() if n in names}, "shared")
        solo = SequentialClient(self.setup)
        result = run_client(solo, task.round, 0, shared, personal, key=self.number, noise=self.noise)
        self.states.keep(task.round, result.personal or {})
        loss = None if result.loss is None else float(result.loss)
        done = Trained(client=self.number, round=task.round, samples=result.update.samples, loss=loss)
        return done, result.update.tensors

    def _test(self, task: Evaluate, shared: Tensors, personal: Tensors) -> tuple[Tested, Tensors]:
        stacked = {name: value.unsqueeze(0) for name, value in personal.items()}
        solo = SequentialClient(self.setup)
        scores = score_clients(
            solo, [0], shared, stacked, task.which, task.round, key=self.number, detailed=task.detailed
        )
        sums = {name: value[0].tolist() for name, value in scores.sums.items()}
        answer = Tested(sums=sums, count=int(scores.count[0]), loss=float(scores.loss[0]))
        return answer, fine_tensors(scores.fine)

    @property
    def _name(self) -> str:
        data = self.setup.data
        return data.client_name(0) if data.clients == 1 else data.client_name(self.number)

    def _with_known(self, task: Train, sent: Tensors) -> Tensors:
        """A message's tensors, and those that are not sent again or that the client works out."""
        known = {} if task.since is None else self._remembered(task.since)
        before = self.setup.initial_shared | known
        return {**known, **self.setup.algorithm.worked_out(before, sent, task.round, self.setup.config.seed)}

    def _remembered(self, round: int) -> Tensors:
        """The shared tensors as they were sent in an earlier round."""
        shared = self.states.shared(round)
        if shared is None:
            raise UpdateError(f"client {self.number} no longer has what it was sent in round {round}")
        return shared

    def _newest(self, before: int, last: int = 0) -> Tensors:
        """Personal tensors after the last round before ``before`` in which the client took part: ``last`` or later."""
        newest = self.states.newest(before, last if self.setup.initial_personal else 0)
        return self.setup.initial_personal if newest is None else newest


class MessageEngine(Engine):
    """The server's side of the message transport.

    Args:
        setup: the run.
        folder: parent of the clients' folders; a temporary one by default.
        deliver: carries a message to a client and brings the answer; by default to :class:`MessageClient` objects in
            this process.
    """

    name = "messages"

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

    def _to_client(self, number: int, message: bytes) -> bytes:
        data = part_of(self.setup.data, [number])
        setup = replace(self.setup, data=data, _splits={})
        setup.prepare_model()
        folder = self.folder / f"client-{number}"
        return MessageClient(setup, number, folder, durable=self._remove is None).handle(message)

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """See :meth:`Engine.train`."""
        results = []
        for client in clients:
            self.check_stop()
            known = self.known.get(client, CachedShared(0, frozenset(), {}))
            news = {name: value for name, value in shared.items() if name not in known.names}
            safe = self._safe if self.back_to is None else min(self._safe, self.back_to)
            task = Train(round=round, safe=safe, since=known.round or None, last=self._last(client))
            message = pack(task.model_dump(), {**news, **known.steps, **(extra or {}).get(client, {})})
            done, tensors = self._ask(client, message, Trained, round)
            if (done.client, done.round) != (client, round):
                whose = f"the answer of {who(self.setup, client, round)}"
                raise UpdateError(f"{whose} cannot be used: it is that of client {done.client} in round {done.round}")
            results.append(ClientResult(Update(client, done.samples, self.setup.moved(tensors)), done.loss))
        self._round = round
        return results

    def commit(self, round: int, results: Sequence[ClientResult], replies: Mapping[int, Tensors] | None = None) -> None:
        """Send the replies; the clients keep their own state, and a repeated round replaces it."""
        for client, reply in (replies or {}).items():
            self._ask(client, pack(Reply(round=round).model_dump(), reply), Kept, round)

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
        message = pack(Evaluate(round=round, which=which, detailed=detailed).model_dump(), shared)
        answers: list[Tested] = []
        fine: list[FineScores] = []
        shapes: dict[str, tuple[int, ...]] = {}
        for client in clients:
            self.check_stop()
            answer, told = self._ask(client, message, Tested, round)
            answers.append(answer)
            fine += self._fine(answer, told, detailed, f"the answer of {who(self.setup, client, round)}")
            shapes = shapes or self._score_shapes(answers[0])
            self._check_shapes(answers[-1], shapes, client, round)
        scores = Scores(
            np.asarray(clients, dtype=np.int64),
            np.array([a.count for a in answers]),
            np.array([a.loss for a in answers]),
            {name: np.array([a.sums[name] for a in answers], dtype=np.float64) for name in shapes},
            self.setup.data.task,
            FineScores.join(fine) if fine else None,
        )
        return self.believable(scores, round, which)

    def _fine(self, answer: Tested, told: Tensors, detailed: bool, whose: str) -> list[FineScores]:
        """What a client tells in detail, if it was asked to."""
        if told and not detailed:
            raise UpdateError(f"{whose} cannot be used: it holds the tensor {quoted(next(iter(told)))}, and needs none")
        kinds, outputs = self.setup.fine, self.setup.data.classes
        return [fine_of_answer(kinds, told, answer.count, outputs, whose)] if detailed else []

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
        return self._ask(client, message, Digested, self._round)[0].digest

    def _ask(self, client: int, message: bytes, kind: type[A], round: int) -> tuple[A, Tensors]:
        """A client's answer to a message, and the tensors that came with it.

        Raises:
            UpdateError: naming client and round: it did not take the message, or the answer cannot be used.
        """
        whose = who(self.setup, client, round)
        try:
            answer = self.deliver(client, message)
        except UpdateError as error:
            raise UpdateError(f"{whose} did not take what it was sent: {error}") from None
        try:
            fields, tensors = unpack(answer)
            read = read_answer(kind, fields)
            if tensors and kind not in (Trained, Tested):
                raise UpdateError(f"it holds the tensor {quoted(next(iter(tensors)))}, and needs none")
        except UpdateError as error:
            raise UpdateError(f"the answer of {whose} cannot be used: {error}") from None
        return read, tensors

    def _last(self, client: int) -> int:
        """The round whose state a client must still have; 0 if it has not taken part."""
        return 0 if self.last_rounds is None else max(0, int(self.last_rounds[client]))

    def save(self, folder: Path, round: int) -> list[Segment]:
        """Nothing: clients keep their own state. What they had at the checkpoint before is safe from now on."""
        self._safe, self._saved = self._saved, round
        return []

    def load(self, segments: Sequence[Segment], round: int) -> None:
        """See :meth:`Engine.load`."""
        self._round = self._saved = round
        self._safe = 0

    def states(self) -> Callable[[int], Tensors]:
        """See :meth:`Engine.states`; they are read from the clients' folders."""
        self._read_later = True
        return self._state_of

    def _state_of(self, client: int) -> Tensors:
        newest = ClientStates(self.folder / f"client-{client}", client).newest(self._round + 1)
        return self.setup.initial_personal if newest is None else newest

    def close(self) -> None:
        """Remove the clients' folders if they are temporary; if :meth:`states` were asked for, with the last reader."""
        if self._remove is not None and not self._read_later:
            self._remove()
