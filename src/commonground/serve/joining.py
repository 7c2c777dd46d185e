"""Requests that arrive together, answered together: what waits while a pass runs is one pass afterwards.

One pass of few rows runs at a time, whoever asks: most of its time is the interpreter's, of which a process has one,
and threads that fight for it answer half as many requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

__all__ = ["Joining"]

Asked = TypeVar("Asked")
Said = TypeVar("Said")


@dataclass(frozen=True, eq=False)
class _Ticket(Generic[Asked, Said]):
    """A request that waits for its answer or error."""

    asked: Asked
    rows: int
    answer: asyncio.Future[Said]


class Joining(Generic[Asked, Said]):
    """Joins requests of one client that arrive while another pass runs; nobody waits for a request to come. Clients
    take turns. Used from one event loop.

    Args:
        answer: from a client and its requests to an answer or an error for each, in their order; called in a thread.
        few: rows of a pass of several requests; a request of more is a pass of its own, beside the others.
    """

    def __init__(self, answer: Callable[[str, list[Asked]], Sequence[Said | Exception]], few: int) -> None:
        self._answer, self._few = answer, few
        self._lines: dict[str, list[_Ticket[Asked, Said]]] = {}
        self._passes: asyncio.Task[None] | None = None

    async def ask(self, client: str, asked: Asked, rows: int) -> Said:
        """The answer to one request.

        Args:
            client: whose it is.
            asked: what is asked.
            rows: how many rows that are.

        Raises:
            Exception: the request's own error.
        """
        ticket = _Ticket[Asked, Said](asked, rows, asyncio.get_running_loop().create_future())
        if rows > self._few:
            await self._pass(client, [ticket])
        else:
            self._lines.setdefault(client, []).append(ticket)
            if self._passes is None:
                self._passes = asyncio.create_task(self._run())
        return await ticket.answer

    async def _run(self) -> None:
        """Passes, until nobody waits."""
        try:
            while self._lines:
                client = next(iter(self._lines))
                waiting = self._lines.pop(client)
                count, rows = 0, 0
                while count < len(waiting) and rows + waiting[count].rows <= self._few:
                    rows += waiting[count].rows
                    count += 1
                if waiting[count:]:
                    self._lines[client] = waiting[count:]  # behind all others
                await self._pass(client, waiting[:count])
        finally:
            self._passes = None

    async def _pass(self, client: str, tickets: list[_Ticket[Asked, Said]]) -> None:
        asked = [ticket.asked for ticket in tickets]
        try:
            answers = await run_in_threadpool(self._answer, client, asked)
            assert len(answers) == len(tickets)
        except Exception as error:
            answers = [error for _ in tickets]
        for ticket, answer in zip(tickets, answers, strict=True):
            if ticket.answer.done():
                continue  # who asked has gone
            if isinstance(answer, Exception):
                ticket.answer.set_exception(answer)
            else:
                ticket.answer.set_result(answer)
