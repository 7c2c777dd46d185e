"""Requests that arrive together, answered together: what waits while a pass runs is one pass afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Joining"]

Asked = TypeVar("Asked")
Said = TypeVar("Said")


@dataclass(eq=False)
class _Ticket(Generic[Asked, Said]):
    """A request that waits, until it has an answer or an error."""

    asked: Asked
    rows: int
    answer: Said | Exception | None = None


@dataclass(eq=False)
class _Line(Generic[Asked, Said]):
    """The requests of one client: who holds the lock answers all that wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: list[_Ticket[Asked, Said]] = field(default_factory=list)
    users: int = 0


class Joining(Generic[Asked, Said]):
    """Joins requests of one client that arrive while another pass for it runs; nobody waits for a request to come.

    Args:
        answer: from a client and its requests to an answer or an error for each, in their order.
        most: rows of one pass, unless a single request has more.
    """

    def __init__(self, answer: Callable[[str, list[Asked]], Sequence[Said | Exception]], most: int) -> None:
        self._answer, self._most = answer, most
        self._lines: dict[str, _Line[Asked, Said]] = {}
        self._guard = threading.Lock()  # of the lines and of who waits in them; never held while a pass runs

    def ask(self, client: str, asked: Asked, rows: int) -> Said:
        """The answer to one request; called from the request's own thread.

        Args:
            client: whose it is.
            asked: what is asked.
            rows: how many rows that are.

        Raises:
            Exception: the request's own error.
        """
        ticket: _Ticket[Asked, Said] = _Ticket(asked, rows)
        with self._guard:
            line = self._lines.setdefault(client, _Line())
            line.waiting.append(ticket)
            line.users += 1
        try:
            with line.lock:
                while ticket.answer is None:
                    self._pass(client, line)
        finally:
            with self._guard:
                line.users -= 1
                if not line.users:
                    del self._lines[client]
        if isinstance(ticket.answer, Exception):
            raise ticket.answer
        return ticket.answer

    def _pass(self, client: str, line: _Line[Asked, Said]) -> None:
        """Answer the first requests that wait, as many as fit into one pass."""
        with self._guard:
            count, rows = 0, 0
            while count < len(line.waiting) and (not count or rows + line.waiting[count].rows <= self._most):
                rows += line.waiting[count].rows
                count += 1
            taken, line.waiting = line.waiting[:count], line.waiting[count:]
        try:
            answers = self._answer(client, [ticket.asked for ticket in taken])
        except Exception as error:
            answers = [error for _ in taken]
        for ticket, answer in zip(taken, answers, strict=True):
            ticket.answer = answer
