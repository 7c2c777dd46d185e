"""A client of the message transport: it has its own data and a folder, and answers bytes with bytes.

It keeps the state of every round it took part in until the server says that a later one is safe in its checkpoints. A
round, a test or a digest starts from the state of the round that the server names, the last one that counted: where an
answer got lost or was refused, what the client kept of that round is dropped.
"""

from __future__ import annotations

from pathlib import Path

from commonground.algorithms import Tensors
from commonground.engine.backends.fine_answers import fine_tensors
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
    read_question,
)
from commonground.engine.backends.received import check_question, check_tensors
from commonground.engine.backends.serial import run_client, score_clients
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.held_parts import only_parts, parts_of, with_zeros
from commonground.engine.private.answers import Given, GivenAnswers
from commonground.engine.private.secret import kept_secret
from commonground.engine.setup import Setup
from commonground.engine.state.client import ClientStates
from commonground.engine.state.digests import digest
from commonground.errors import UpdateError
from commonground.privacy import NoiseSource

__all__ = ["MessageClient"]


class MessageClient:
    """A client of the federation: its own data, its own folder, and an answer to every message.

    Args:
        setup: the run on the client's side; its data set holds this one client.
        number: the client's number in the federation, which keys its draws.
        folder: where it keeps its personal tensors.
        durable: whether they have to outlast a power cut.
        noise: where the client's own noise comes from (``--dp-where client``, ``--dp example``), whatever the run's
            settings say: with :class:`~commonground.privacy.SecretNoise` no server can draw and subtract it. By default
            as the settings say, a secret being the client's own and kept in its folder.
    """

    def __init__(
        self, setup: Setup, number: int, folder: Path, *, durable: bool = True, noise: NoiseSource | None = None
    ) -> None:
        self.setup = setup
        own = noise is None and setup.clients_add_noise and setup.config.dp_secret_noise
        self.noise = kept_secret(folder) if own else noise
        self.number = number
        self.states = ClientStates(folder, number, durable=durable)
        self.answers = GivenAnswers(self.states, self._name)

    def handle(self, message: bytes) -> bytes:
        """Answer one message of the server.

        Where the server is elsewhere, whatever carries messages tells it of errors as ``pack({"error": text}, {})``.

        Raises:
            UpdateError: it is no message, or not one that this client can be sent; nothing is kept of it.
            RunError: the client has not what the run needs, or cannot keep it.
        """
        answer, tensors = self._answer(*self._read(message))
        return pack(answer.model_dump(), tensors)

    def end(self, message: bytes) -> tuple[Evaluate, Tensors, Tensors]:
        """What a test's message says of the whole run's end.

        Returns:
            The message, the shared tensors, and the client's own after the last round of its that counted.

        Raises:
            UpdateError, RunError: as :meth:`handle`.
        """
        question, shared = self._read(message)
        if not isinstance(question, Evaluate):
            raise UpdateError(f"the server's message to client {self._name} is no test")
        return question, shared, self._newest(question.round + 1, question.last)

    def _read(self, message: bytes) -> tuple[Train | Reply | Evaluate | Digest, Tensors]:
        """A message and its tensors, checked."""
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
        return question, sent

    def _answer(self, question: Train | Reply | Evaluate | Digest, sent: Tensors) -> tuple[Answer, Tensors]:
        """Do what a message that was checked asks for."""
        if isinstance(question, Train):
            return self._train(question, sent)
        personal = self._newest(question.round + 1, None if isinstance(question, Reply) else question.last)
        if isinstance(question, Reply):
            self.states.keep(question.round, {**personal, **sent})
            return Acknowledged(), {}
        if isinstance(question, Evaluate):
            return self._test(question, sent, personal)
        return Digested(digest=digest(personal)), {}

    def _train(self, task: Train, shared: Tensors) -> tuple[TrainAnswer, Tensors]:
        personal = self._newest(task.round, task.last)  # first, so that nothing goes if it is not there
        once = self.answers if self.setup.clients_add_noise and self.noise is not None else None
        given = None if once is None else once.given(task.round, shared, personal)
        self.states.forget(task.round, task.safe, task.last)
        if self.setup.algorithm.clients_remember:
            names = self.setup.initial_shared
            self.states.keep(task.round, {n: v for n, v in shared.items() if n in names}, "shared")
        if given is None:
            solo = SequentialClient(self.setup)
            result = run_client(solo, task.round, 0, shared, personal, key=self.number, noise=self.noise)
            loss = None if result.loss is None else float(result.loss)
            given = Given(result.update.samples, loss, result.update.tensors, result.personal or {})
            if once is not None:
                once.keep(task.round, shared, personal, given)
        self.states.keep(task.round, given.own)
        done = TrainAnswer(client=self.number, round=task.round, samples=given.samples, loss=given.loss)
        return done, parts_of(self.setup.algorithm, given.sent, self.number)

    def _test(self, task: Evaluate, shared: Tensors, personal: Tensors) -> tuple[Tested, Tensors]:
        stacked = {name: value.unsqueeze(0) for name, value in personal.items()}
        solo, shared = SequentialClient(self.setup), self.setup.moved(shared)
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
        setup, known = self.setup, {} if task.since is None else self._remembered(task.since)
        whole = with_zeros(setup.algorithm, sent, setup.initial_shared, self.number, "it")
        before = setup.initial_shared | known
        made = known | setup.algorithm.worked_out(before, whole, task.round, setup.config.seed)
        return made | only_parts(setup.algorithm, {n: v for n, v in made.items() if n in before}, self.number)

    def _remembered(self, round: int) -> Tensors:
        """The shared tensors as they were sent in an earlier round."""
        shared = self.states.shared(round)
        if shared is None:
            raise UpdateError(f"client {self.number} no longer has what it was sent in round {round}")
        return shared

    def _newest(self, before: int, last: int | None = None) -> Tensors:
        """Personal tensors after the last round before ``before`` in which the client took part; if ``last`` is given,
        after that one: what it kept of later rounds never counted.
        """
        initial = self.setup.initial_personal
        if last is None:
            kept = self.states.newest(before)
        else:
            kept = self.states.after(last) if initial else None
        return initial if kept is None else kept
