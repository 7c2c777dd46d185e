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

_OF_A_RUN = ("ask", "end")  # questions to whom a run has begun


class Desk(Generic[T]):
    """Takes letters in and gives answers out, each with a tag of whoever carries them.

    A question that is asked again, because its answer was lost, is not worked on again; one that failed is, since what
    was in the way may be gone.

    Args:
        answering: the client.
        note: hears what is worked on.
    """

    def __init__(self, answering: Answering, note: Callable[[str], None] = lambda text: None) -> None:
        self.answering, self.note = answering, note
        self.answers: queue.Queue[tuple[T, Letter]] = queue.Queue()
        self._work: queue.Queue[tuple[T, Letter] | None] = queue.Queue()
        self._waiting: list[str] = []
        self._last: tuple[str, bytes | None] = ("", None)  # which question was worked on, and its answer but a failure
        self._said = ""  # to the client's owner, of the last question of a run, if that failed
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
                self._waiting.append(question_id(letter))
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
            if question not in self._waiting:
                return "unknown"
            return "busy" if self._waiting[0] == question else "behind"

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            tag, letter = item
            question = question_id(letter)
            kept = self._last[1] if question == self._last[0] else None
            kind, body, failure = ("ok", kept, None) if kept is not None else self._worked(letter)
            with self._lock:
                self._waiting.remove(question)
                if letter.kind == "begin":  # from here the same question may have another answer
                    self._last = ("", None)
                elif kind == "ok":
                    # What a table tells may change with its file.
                    again = failure is None and letter.kind in _OF_A_RUN
                    self._last = (question, body if again else None)
            self.answers.put((tag, Letter(kind, question, body if failure is None else failed(failure))))

    def _worked(self, letter: Letter) -> tuple[str, bytes, BaseException | None]:
        """The answer's kind and body, or what has failed."""
        try:
            if letter.kind in _OF_A_RUN and not self.answering.has_begun(letter.run):
                return "not-begun", b"", None
            body = self._body(letter)
        except CommonGroundError as error:
            said = str(error.__cause__ or error)  # a cell of the client's table is for its own log
            if letter.kind not in _OF_A_RUN or said != self._said:
                self.note(said)
            self._said = said
            return "ok", b"", error
        except BaseException as error:  # whatever it is, the server hears of it and the client lives on
            self.note(f"{type(error).__name__}: {error}")
            return "ok", b"", error
        self._said = ""
        return "ok", body, None

    def _body(self, letter: Letter) -> bytes:
        if letter.kind == "begin":
            body = self.answering.begin(letter.body)
            self.note(self.answering.what_began(letter.run))
            return body
        if letter.kind == "off":
            return self.answering.call_off(letter.run)
        if letter.kind in ("tell", "agree"):
            return self.answering.agree(letter.kind, letter.body)
        if letter.kind == "end":
            return self.answering.end(letter.run, letter.body)
        return self.answering.ask(letter.run, letter.body)
