"""The server's post: letters through Flower's grid, with a way back for nodes that were away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from flwr.app import Message, MessageType
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from commonground.errors import UpdateError
from commonground.network.letters import content_of, letter_of
from commonground.network.limits import Limits
from commonground.network.parts import UNUSABLE
from commonground.network.post import WORK, Letter, NoAnswerError, question_id
from commonground.quoting import escaped

__all__ = ["GridPost"]

TRIES = 4  # of sending a message; one more is final
POLL = 0.1  # seconds between two looks for answers; Flower's own loop takes 3
_BEHIND = "it is still at work on what it was asked before"
LOOK = 3.0  # seconds between two looks after nodes that have not answered


class _Grid(Protocol):
    """What is used of :class:`flwr.serverapp.Grid`."""

    def get_node_ids(self) -> Iterable[int]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class GridPost:
    """Letters over a grid.

    A node that dies takes the letters with it that it had fetched. So one that is there and has not answered is asked
    whether it knows of the letter, and is sent it again if it does not. One that is away is waited for, but not again
    in later exchanges, until it is back.

    Args:
        grid: Flower's.
        limits: how long an absent node is waited for, and how large a letter may be.
    """

    def __init__(self, grid: Any, limits: Limits) -> None:
        self.grid: _Grid = grid
        self.limits = limits
        self._away: set[int] = set()

    def nodes(self) -> Sequence[int]:
        """See :class:`~commonground.network.post.Post`."""
        return sorted(self.grid.get_node_ids())

    def exchange(
        self, letters: Mapping[int, Letter], seconds: float, check_stop: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, Letter | UpdateError]]:
        """See :class:`~commonground.network.post.Post`."""
        if not letters:
            return
        there = set(self.nodes())
        self._away -= there
        for node in letters:
            if node in self._away:
                yield node, NoAnswerError("it is not there")
        trip = _Trip(self, {n: letter for n, letter in letters.items() if n not in self._away}, seconds)
        while trip.waiting:
            check_stop()
            yield from trip.look()
            if trip.waiting:
                time.sleep(POLL)

    def push(self, letters: Mapping[int, Letter], seconds: float) -> dict[str, int]:
        """Send letters; the messages' ids, with their nodes."""
        ids: dict[str, int] = {}
        for node, letter in letters.items():  # one by one: a message is kept in memory only while it is sent
            message = Message(content_of(letter), node, MessageType.QUERY, ttl=seconds)
            for sent in self._pushed(message):
                if sent:
                    ids[sent] = node
        return ids

    def _pushed(self, message: Message) -> Iterable[str]:
        for _ in range(TRIES):
            try:
                return self.grid.push_messages([message])
            except ObjectPushError:  # the server's database was busy; it takes what is missing
                time.sleep(POLL)
        return self.grid.push_messages([message])

    def away(self, node: int) -> None:
        """Remember that a node was waited for in vain."""
        self._away.add(node)


class _Trip:
    """One exchange under way."""

    def __init__(self, post: GridPost, letters: Mapping[int, Letter], seconds: float) -> None:
        self.post, self.letters, self.seconds = post, letters, seconds
        self.until = time.monotonic() + seconds
        self.waiting = dict.fromkeys(letters, "")  # with the last thing that was heard
        self.ids = post.push(letters, seconds)
        self.pings: dict[str, int] = {}
        self.gone: dict[int, float] = {}  # since when a node is away
        self.next_look = time.monotonic() + LOOK

    def look(self) -> Iterator[tuple[int, Letter | UpdateError]]:
        """What has come, and what will not come any more."""
        now = time.monotonic()  # before: an answer that takes long to come makes none late that comes meanwhile
        for message in self.post.grid.pull_messages([*self.ids, *self.pings]):
            reply_to = message.metadata.reply_to_message_id
            if reply_to in self.pings:
                self._pinged(self.pings.pop(reply_to), message)
            elif reply_to in self.ids:
                yield from self._answered(self.ids.pop(reply_to), message)
        if now > self.next_look:
            self.next_look = now + LOOK
            self._look_after(now)
        for node, heard in list(self.waiting.items()):
            away = now - self.gone.get(node, now) > self.post.limits.absence
            if now > self.until or away:
                del self.waiting[node]
                why = "it is not there" if away else f"it did not answer within {self.seconds:g} s"
                if away:
                    self.post.away(node)
                yield node, NoAnswerError(f"{why}{f' ({heard})' if heard else ''}")

    def _answered(self, node: int, message: Message) -> Iterator[tuple[int, Letter | UpdateError]]:
        if node not in self.waiting:
            return  # it answered the same question twice
        if message.has_error():
            reason = message.error.reason or ""
            if UNUSABLE in reason:
                del self.waiting[node]
                yield node, _of_its_answer(reason.partition(UNUSABLE)[2])
            elif self.waiting[node] != _BEHIND:
                self.waiting[node] = escaped(reason, 100)  # Flower's: it is away, or died at work
            return
        del self.waiting[node]
        try:
            yield node, letter_of(message.content, self.post.limits.max_bytes)
        except UpdateError as error:
            yield node, _of_its_answer(str(error))

    def _look_after(self, now: float) -> None:
        there = set(self.post.nodes())
        for node in self.waiting:
            if node not in there:
                self.gone.setdefault(node, now)
                continue
            self.gone.pop(node, None)
            letter = self.letters[node]
            if letter.kind in WORK and node not in self.pings.values():
                about = Letter("ping", letter.run, question_id(letter).encode())
                self.pings |= self.post.push({node: about}, self.seconds)
            elif letter.kind == "hello":  # it is answered at once, and may be twice: the first may have been lost
                self.ids |= self.post.push({node: letter}, self.seconds)

    def _pinged(self, node: int, message: Message) -> None:
        """Send the letter again to a node that knows nothing of it."""
        if node not in self.waiting or message.has_error():
            return
        try:
            told = letter_of(message.content, self.post.limits.max_bytes).kind
        except UpdateError:
            return
        if told == "behind":
            self.waiting[node] = _BEHIND
        if told == "unknown" or (told == "done" and node not in self.ids.values()):
            self.ids |= self.post.push({node: self.letters[node]}, max(1.0, self.until - time.monotonic()))


def _of_its_answer(why: str) -> UpdateError:
    return UpdateError(f"of its answer the server says: {escaped(why, 300)}")
