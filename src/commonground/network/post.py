"""How messages of a run reach nodes: what any carrier offers, and the questions of one run on top of it."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from commonground.engine.backends.message_kinds import Acknowledged, read_answer
from commonground.engine.backends.serialization import unpack
from commonground.errors import UpdateError
from commonground.quoting import quoted

__all__ = ["WORK", "Letter", "NoAnswerError", "Post", "Questions", "body_of", "json_of", "question_id", "said_of"]

WORK = ("tell", "agree", "begin", "ask", "end", "off")
"""Kinds of letters that a client works on, one after the other; it answers others at once."""

LOOK = 5.0  # seconds between two looks for nodes that are not in a run


class NoAnswerError(UpdateError):
    """Nothing has come of a node; it may yet."""


class Letter(NamedTuple):
    """One message between a server and a node.

    Attributes:
        kind: ``hello``, ``tell``, ``agree``, ``begin``, ``ask``, ``end``, ``off``, ``told`` or ``ping``; of an answer,
            whether the node could: ``ok``, ``not-begun``, or to a ``ping`` ``busy``, ``done`` or ``unknown``.
        run: the run's id; empty before it has one. Of an answer to :data:`WORK`, which question it answers
            (:func:`question_id`), so that no other answer can stand in its place.
        body: what is said.
    """

    kind: str
    run: str
    body: bytes


class Post(Protocol):
    """What carries letters to nodes and brings back their answers."""

    def nodes(self) -> Sequence[int]:
        """The nodes that are there now."""
        ...

    def exchange(
        self, letters: Mapping[int, Letter], seconds: float, check_stop: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, Letter | UpdateError]]:
        """The answer of every node as it comes, or why there is none, at the latest when the seconds are over."""
        ...


class Questions:
    """The transport of a run's engine: client numbers in place of nodes, and the run's beginning where it is missing.

    Args:
        post: carries letters.
        run: the run's id.
        nodes: of the clients, in their order.
        begin: what a client is told first.
        again: whether those who have begun are told once more, since the run goes on with other settings, perhaps.
        note: hears of nodes that are not in the run.
        left_out: nodes of which it has heard why they are not.
    """

    def __init__(
        self,
        post: Post,
        run: str,
        nodes: Sequence[int],
        begin: Callable[[int], bytes],
        again: bool = False,
        note: Callable[[str], None] = lambda text: None,
        left_out: Iterable[int] = (),
    ) -> None:
        self.post, self.run, self.nodes, self.begin, self.note = post, run, nodes, begin, note
        self._to_tell = set(nodes) if again else set()
        self._known = {*nodes, *left_out}
        self._next_look = -math.inf

    def exchange(
        self, messages: Mapping[int, bytes], seconds: float, check_stop: Callable[[], None], kind: str = "ask"
    ) -> Iterator[tuple[int, bytes | UpdateError]]:
        """See :class:`~commonground.network.engine.Transport`."""
        self._look_for_others()
        client_of = {self.nodes[client]: client for client in messages}
        letters = {self.nodes[client]: Letter(kind, self.run, body) for client, body in messages.items()}
        late = {
            node: Letter("begin", self.run, self.begin(client_of[node])) for node in letters if node in self._to_tell
        }
        told_already = {node: letter for node, letter in letters.items() if node not in late}
        for node, answer in self.post.exchange(told_already, seconds, check_stop):
            if isinstance(answer, Letter) and answer.kind == "not-begun":
                late[node] = Letter("begin", self.run, self.begin(client_of[node]))
            else:
                yield client_of[node], body_of(answer, letters[node])
        begun: dict[int, Letter] = {}
        for node, answer in self.post.exchange(late, seconds, check_stop):
            told = said_of(answer, late[node])
            if isinstance(told, UpdateError):
                yield client_of[node], told
            else:
                self._to_tell.discard(node)
                begun[node] = letters[node]
        for node, answer in self.post.exchange(begun, seconds, check_stop):
            yield client_of[node], body_of(answer, letters[node])

    def _look_for_others(self) -> None:
        """Who comes too late would otherwise wait for questions without a word."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK
        for node in sorted({*self.post.nodes()} - self._known):
            self._known.add(node)
            self.note(f"node {node} is there, and not in this run, which has begun without it; it may be in the next")


def body_of(answer: Letter | UpdateError, asked: Letter) -> bytes | UpdateError:
    """What a node answered to one of :data:`WORK`, or why it did not."""
    if isinstance(answer, UpdateError):
        return answer
    if answer.kind != "ok":
        return UpdateError(f"it says {quoted(answer.kind)}")
    if answer.run != question_id(asked):
        return UpdateError("it answers another question")
    return answer.body


def said_of(answer: Letter | UpdateError, asked: Letter) -> bytes | UpdateError:
    """As :func:`body_of`, of a letter whose answer is JSON, or why the client could not give it."""
    body = body_of(answer, asked)
    return body if isinstance(body, UpdateError) else json_of(body)


def json_of(body: bytes) -> bytes | UpdateError:
    """An answer that is JSON, or why the client could not give it."""
    if body.startswith(b"{"):
        return body
    try:
        read_answer(Acknowledged, unpack(body)[0])
    except UpdateError as error:
        return error
    return UpdateError("its answer cannot be read")


def question_id(asked: Letter) -> str:
    """By which a question is asked after; a test and the end of a run may be of the same bytes."""
    return hashlib.sha256(f"{asked.kind} {asked.run} ".encode() + asked.body).hexdigest()
