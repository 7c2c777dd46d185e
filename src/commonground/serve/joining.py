"""Requests that arrive together, answered together: what waits while a pass runs is one pass afterwards.

One small pass runs at a time, whoever asks: most of its time is the interpreter's, of which a process has one, and
threads that fight for it answer half as many requests. Large requests run beside it, as many as there are cores.
"""

from __future__ import annotations

import asyncio
import os
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
    size: int
    answer: asyncio.Future[Said]


class Joining(Generic[Asked, Said]):
    """Joins requests of one client that arrive while another pass runs; nobody waits for a request to come. Clients
    take turns. Used from one event loop.

    Args:
        answer: from a client and its requests to an answer or an error for each, in their order; called in a thread.
        small: the size of a pass of several requests; a larger request is a pass of its own, beside the others.
    """

    def __init__(self, answer: Callable[[str, list[Asked]], Sequence[Said | Exception]], small: int) -> None:
        self._answer, self._small = answer, small
        self._lines: dict[str, list[_Ticket[Asked, Said]]] = {}
        self._passes: asyncio.Task[None] | None = None
        self._large = asyncio.Semaphore(os.cpu_count() or 1)

    async def ask(self, client: str, asked: Asked, size: int) -> Said:
        """The answer to one request.

        Args:
            client: whose it is.
            asked: what is asked.
            size: by which requests are small or large, such as their bytes.

        Raises:
            Exception: the request's own error.
        """
        ticket = _Ticket[Asked, Said](asked, size, asyncio.get_running_loop().create_future())
        if size > self._small:
            async with self._large:
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
                waiting = [ticket for ticket in self._lines.pop(client) if not ticket.answer.done()]
                count, size = 0, 0
                while count < len(waiting) and (not count or size + waiting[count].size <= self._small):
                    size += waiting[count].size
                    count += 1
                if waiting[count:]:
                    self._lines[client] = waiting[count:]  # behind all others
                if waiting:
                    await self._pass(client, waiting[:count])
        finally:
            self._passes = None

    async def _pass(self, client: str, tickets: list[_Ticket[Asked, Said]]) -> None:
        try:
            answers = await run_in_threadpool(self._answer, client, [ticket.asked for ticket in tickets])
            if len(answers) != len(tickets):
                raise RuntimeError(f"{len(answers)} answers to {len(tickets)} requests")
        except Exception as error:
            answers = [error for _ in tickets]
        for ticket, answer in zip(tickets, answers, strict=True):
            if ticket.answer.done():
                continue  # who asked has gone
            if isinstance(answer, Exception):
                ticket.answer.set_exception(answer)
            else:
                ticket.answer.set_result(answer)
