"""Where a client's letters are answered: short ones at once, work one after the other in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from commonground.errors import CommonGroundError
from commonground.network.answering import Answering, failed
from commonground.network.post import WORK, Letter, question_id
from commonground.quoting import escaped

__all__ = ["Desk"]

T = TypeVar("T")


class Desk(Generic[T]):
    """Takes letters in and gives answers out, each with a tag of whoever carries them.

    A question that is asked again, because its answer was lost, is not worked on again.

    Args:
        answering: the client.
        note: hears what is worked on.
    """

    def __init__(self, answering: Answering, note: Callable[[str], None] = lambda text: None) -> None:
        self.answering, self.note = answering, note
        self.answers: queue.Queue[tuple[T, Letter]] = queue.Queue()
        self._work: queue.Queue[tuple[T, Letter] | None] = queue.Queue()
        self._waiting: list[str] = []
        self._last: tuple[str, bytes] = ("", b"")
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)
        self._thread.start()

    def take(self, tag: T, letter: Letter) -> None:
        """Take a letter in; its answer comes to :attr:`answers`."""
        if letter.kind == "ping":
            self.answers.put((tag, Letter(self._state(letter.body.decode("ascii", "replace")), letter.run, b"")))
        elif letter.kind == "hello":
            self.answers.put((tag, Letter("ok", "", self._hello())))
        elif letter.kind == "told":
            self.note(f"no run has begun: {escaped(letter.body.decode('utf-8', 'replace'), 1000)}")
            self.answers.put((tag, Letter("ok", "", b"")))
        elif letter.kind in WORK:
            with self._lock:
                self._waiting.append(question_id(letter.run, letter.body))
            self._work.put((tag, letter))
        else:
            self.answers.put((tag, Letter("ok", letter.run, failed(CommonGroundError("this is no message")))))

    def close(self) -> None:
        """Take nothing more in; what is worked on is finished first."""
        self._work.put(None)
        self._thread.join()

    def _hello(self) -> bytes:
        try:
            return self.answering.hello()
        except CommonGroundError as error:
            self.note(str(error.__cause__ or error))
            return failed(error)

    def _state(self, question: str) -> str:
        with self._lock:
            if question == self._last[0]:
                return "done"
            return "busy" if question in self._waiting else "unknown"

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            tag, letter = item
            question = question_id(letter.run, letter.body)
            if question == self._last[0]:
                answer = Letter("ok", question, self._last[1])
            else:
                answer = self._worked(letter, question)
            with self._lock:
                self._waiting.remove(question)
                if letter.kind != "begin" and answer.kind == "ok":
                    self._last = (question, answer.body)
            self.answers.put((tag, answer))

    def _worked(self, letter: Letter, question: str) -> Letter:
        try:
            if letter.kind == "begin":
                body = self.answering.begin(letter.body)
                self.note(f"takes part in the run {letter.run}")
            elif letter.kind == "off":
                body = self.answering.call_off(letter.run)
            elif letter.kind in ("tell", "agree"):
                body = self.answering.agree(letter.kind, letter.body)
            elif not self.answering.has_begun(letter.run):
                return Letter("not-begun", question, b"")
            elif letter.kind == "end":
                body = self.answering.end(letter.run, letter.body)
            else:
                body = self.answering.ask(letter.run, letter.body)
        except CommonGroundError as error:
            self.note(str(error.__cause__ or error))  # a cell of the client's table is for its own log
            return Letter("ok", question, failed(error))
        except Exception as error:  # whatever it is, the server hears of it and the client lives on
            self.note(f"{type(error).__name__}: {error}")
            return Letter("ok", question, failed(error))
        return Letter("ok", question, body)
