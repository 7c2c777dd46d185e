"""The engine whose clients are real: each on its own host, asked all at once, some late, lost, broken or lying.

What a client computes is what it computes under ``messages``, so a run in which all answer has the same numbers. Here a
missing or bad answer costs the client its round and not the run: the client starts its next round from the last one
that counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from commonground.aggregation import parse_aggregate
from commonground.algorithms import Tensors
from commonground.engine.backends.base import Which
from commonground.engine.backends.checks import odd_updates, settle, who
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.messages import MessageEngine
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.errors import RunError, UpdateError
from commonground.network.limits import Limits

__all__ = ["NetworkEngine", "Transport"]


class Transport(Protocol):
    """What carries messages to clients, by number, and brings their answers."""

    def exchange(
        self, messages: Mapping[int, bytes], seconds: float, check_stop: Callable[[], None]
    ) -> Iterator[tuple[int, bytes | UpdateError]]:
        """Every client's answer as it comes, or why there is none, at the latest when the seconds are over."""
        ...


class NetworkEngine(MessageEngine):
    """The server's side where clients are elsewhere.

    Args:
        setup: the run; its data set is a described one (:mod:`commonground.data.described`).
        transport: carries the messages.
        limits: how long is waited, and for how many.
    """

    name = "network"

    def __init__(self, setup: Setup, transport: Transport, limits: Limits) -> None:
        super().__init__(setup, folder=Path(), deliver=_nobody)
        self.transport, self.limits = transport, limits
        self.saved_every_round = True
        self._sent: Tensors = {}
        self._why: dict[int, str] = {}  # a client's rounds do not count, as was noted, until one does

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """See :meth:`Engine.train`; of those who answered, in the clients' order.

        Raises:
            RunError: too few did, also after waiting for others to come back.
        """
        self._sent = shared
        aggregate = parse_aggregate(self.setup.config.aggregate)
        if aggregate.least() > self.limits.min_answers:
            least, why = aggregate.least(), f"--aggregate {aggregate} needs {aggregate.least()}"
        else:
            least, why = min(self.limits.min_answers, len(clients)), f"--min-answers is {self.limits.min_answers}"
        before = dict(self._counted)
        results = self._alike(super().train(round, clients, shared, extra), round)
        until = time.monotonic() + self.limits.patience  # from the end of the first try, which may have taken as long
        while len(results) < least:
            self.check_stop()
            if time.monotonic() > until:
                reasons = "; ".join(dict.fromkeys(self.missing.values()))
                raise RunError(
                    f"in round {round} {len(results)} of {len(clients)} clients gave an answer that can be used, and "
                    f"{why}: {reasons}; continue with --resume"
                )
            time.sleep(self.limits.pause)
            self._counted = dict(before)  # the round begins anew, for those who answered as well
            results = self._alike(super().train(round, clients, shared, extra), round)
        for client in sorted({result.update.client for result in results} & self._why.keys()):
            del self._why[client]
            self.note(f"round {round}: client {self.setup.data.shown_name(client)} takes part again")
        return results

    def commit(self, round: int, results: Sequence[ClientResult], replies: Mapping[int, Tensors] | None = None) -> None:
        """See :meth:`Engine.commit`; whom its reply does not reach starts its next round from an earlier one, but its
        update is in the average.
        """
        before = set(self.missing)
        super().commit(round, results, replies)
        for client in self.missing.keys() - before:
            self.missing[client] += "; its update counts, but what it kept of the round is dropped, as no reply came"

    def _alike(self, results: list[ClientResult], round: int) -> list[ClientResult]:
        """Those whose updates can be averaged with the others'."""
        odd = odd_updates(self.setup, results, round)
        for client, error in odd.items():
            self._uncount(client)
            self._refuse(client, round, error)
        return [result for result in results if result.update.client not in odd]

    def _exchange(
        self, clients: Sequence[int], question: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | UpdateError]]:
        messages = {client: question(client) for client in clients}
        yield from self.transport.exchange(messages, self.limits.seconds, self.check_stop)

    def _admitted(self, result: ClientResult, round: int) -> ClientResult:
        """Looked at by itself, so that it is refused alone."""
        admitted = settle(self.setup, [result], round)[0]
        self.limits.check_update(self.setup, admitted, round, self._sent)
        return admitted

    def _refuse(self, client: int, round: int, error: UpdateError) -> None:
        """The client's round does not count; why is noted once, until it takes part again."""
        self.missing[client] = str(error)
        why = str(error).replace(who(self.setup, client, round), "")
        if self._why.get(client) != why:
            self._why[client] = why
            self.note(f"round {round}: {error}")

    def evaluate(
        self,
        clients: Sequence[int],
        shared: Tensors,
        which: Which = "personal",
        round: int = 0,
        *,
        detailed: bool = False,
    ) -> Scores:
        """See :meth:`Engine.evaluate`; a client that does not answer has a test of no rows, and its round counts."""
        missing, self.missing = self.missing, {}
        try:
            return super().evaluate(clients, shared, which, round, detailed=detailed)
        finally:
            untested, self.missing = self.missing, missing
            if which == "personal" or not self.setup.has_personal_model:
                self.untested = untested

    def digest(self, client: int) -> str:
        """See :meth:`Engine.digest`; empty if the client does not answer."""
        missing = dict(self.missing)
        try:
            return super().digest(client)
        finally:
            self.missing = missing

    def _joined(self, clients: Sequence[int], scores: Mapping[int, Scores], round: int) -> Scores:
        if not scores:
            raise RunError(f"after round {round} no client answered with a test; continue with --resume")
        return Scores.join([scores[client] for client in clients if client in scores]).among(clients)

    def states(self) -> Callable[[int], Tensors]:
        """See :meth:`Engine.states`: they are not here."""

        def elsewhere(client: int) -> Tensors:
            if not self.setup.initial_personal:
                return {}
            raise RunError(
                f"what is personal of client {self.setup.data.shown_name(client)} is on its own host, and so is its "
                "model, in the folder 'models'"
            )

        return elsewhere


def _nobody(client: int, message: bytes) -> bytes:
    raise UpdateError("nobody carries messages one by one here")
