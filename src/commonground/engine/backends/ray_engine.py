"""Clients shared out to workers on Ray, on this machine or on many, each with its clients' samples and state.

A round sends every worker the shared tensors once and brings the updates back; what a client keeps stays with its
worker. It becomes safe here, in the asking process, at every checkpoint and after some rounds. A worker that is lost
is replaced: the new one is sent its clients' safe state, repeats the rounds since, whose draws are keyed and so the
same, and goes on with the round that was under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from commonground.algorithms import Tensors
from commonground.engine.backends.base import StoreEngine, Which, payload_bytes
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.processes import default_workers
from commonground.engine.backends.ray_actor import numerics_here
from commonground.engine.backends.ray_crew import CPU_SECONDS, Crew, Member
from commonground.engine.backends.ray_log import LoggedRound, RoundLog, array_bytes
from commonground.engine.backends.ray_session import Session
from commonground.engine.backends.ray_tasks import WorkerTask, WorkerTasks, copies
from commonground.engine.backends.worker import Arrays, RoundArrays, joined, largest_first, to_arrays, to_tensors
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.segment import Segment
from commonground.errors import ConfigError

__all__ = ["RayEngine"]

TESTED_AT_ONCE = 16  # clients
ROWS_BYTES = 1 << 24  # of clients' state in one message


class RayEngine(StoreEngine):
    """Workers on Ray.

    Args:
        setup: data, model and algorithm.

    Raises:
        ConfigError: Ray is not installed, nothing answers at its address, or it has too few free CPUs.
    """

    name = "ray"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.bytes: Counter[str] = Counter()  # what has crossed between processes so far, by what it is
        self._log = RoundLog(setup.data.clients)
        self._round = 0
        self._extra: dict[int, Arrays] = {}
        self._tasks: WorkerTasks | None = None
        self._at_once = max(1, ROWS_BYTES // max(1, payload_bytes(setup.initial_personal)))
        most = setup.config.participants(setup.data.clients)
        self._session = Session.join(setup.config.ray_address, min(setup.config.workers or default_workers(), most))
        try:
            self._workers = self._count(most)
            self._staff()
        except BaseException:
            self.close()
            raise

    def _count(self, most: int) -> int:
        """How many workers there are: one per free CPU, those that another engine of the run would give back too."""
        session, asked = self._session, self.setup.config.workers
        lent = 0 if session.holder is None else len(session.holder.members)
        wanted = min(asked or session.cpus(), most)
        # CPUs of a run that has just ended are free in a moment; more than there are will never be.
        free = lent + session.free_cpus(wanted - lent, CPU_SECONDS if session.cpus() >= wanted else 0)
        if not free:
            raise ConfigError(f"{session.name} has no free CPU for a worker")
        if asked is not None and free < wanted:
            raise ConfigError(f"--workers {asked} needs {wanted} free CPUs, and {session.name} has {free}")
        return min(wanted, free)

    # -- rounds ---------------------------------------------------------------------------------------------------

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """See :meth:`Engine.train`; each worker has its largest clients first."""
        tasks = self._staff()
        self._warn()
        tasks.offer(shared)
        self._extra = {client: copies(tensors) for client, tensors in (extra or {}).items()}
        self.bytes["to single clients"] += sum(map(array_bytes, self._extra.values()))
        owner = {client: member for member in tasks.crew.members for client in member.clients}
        order = [clients[i] for i in largest_first(self.setup, clients)]
        wanted = [
            WorkerTask(
                owner[client], "train", (tasks.version, round, client, self._extra.get(client, {})), self._result
            )
            for client in order
        ]
        results = dict(zip(order, tasks.do(wanted, round), strict=True))
        return [results[client] for client in clients]

    def _result(self, answer: RoundArrays) -> ClientResult:
        """A client's round, copied: the memory of Ray's object store is given back at once."""
        sent, kept = ({n: np.array(v) for n, v in arrays.items()} for arrays in (answer.sent, answer.kept))
        self.bytes["updates"] += array_bytes(sent)
        return answer._replace(sent=sent, kept=kept).result()

    def commit(self, round: int, results: Sequence[ClientResult], replies: Mapping[int, Tensors] | None = None) -> None:
        """See :meth:`Engine.commit`; the state stays where it is."""
        self._round = round
        if not self.setup.initial_personal:
            return
        tasks, clients = self._staff(), [result.update.client for result in results]
        answers = {client: copies(reply) for client, reply in (replies or {}).items()}
        self.bytes["to single clients"] += sum(map(array_bytes, answers.values()))
        # From here on the round counts: the successor of a worker that is lost now has repeated it.
        self._log.add(LoggedRound(round, clients, tasks.shared, self._extra, answers))
        wanted = [
            WorkerTask(member, "commit", (theirs, {c: answers[c] for c in theirs if c in answers}))
            for member, theirs in self._by_member(clients)
        ]
        tasks.do(wanted, round, again=False)
        if self._log.full:
            self._make_safe()

    def evaluate(
        self,
        clients: Sequence[int],
        shared: Tensors,
        which: Which = "personal",
        round: int = 0,
        *,
        detailed: bool = False,
    ) -> Scores:
        """See :meth:`Engine.evaluate`; every client is tested for itself, as a remote one tests itself."""
        tasks = self._staff()
        tasks.offer(shared)
        wanted = [
            WorkerTask(member, "evaluate", (tasks.version, some, which, round, detailed))
            for member, theirs in self._by_member(clients)
            for some in _parts(theirs, TESTED_AT_ONCE)
        ]
        found = {int(scores.clients[0]): scores for part in tasks.do(wanted, round) for scores in part}
        return self.believable(joined(self.setup, [found[c] for c in clients], detailed=detailed), round, which)

    def _by_member(self, clients: Sequence[int]) -> Iterator[tuple[Member, list[int]]]:
        """Workers and which of these clients each of them has, where it has any."""
        among = set(clients)
        for member in self.members:
            theirs = [client for client in member.clients if client in among]
            if theirs:
                yield member, theirs

    # -- what clients keep ----------------------------------------------------------------------------------------

    def _make_safe(self) -> None:
        """Bring the state here that has changed; a user who stops a run wants that as well."""
        unsafe = self._log.unsafe()
        if not unsafe:
            return
        tasks = self._staff()
        wanted = [
            WorkerTask(member, "rows", (some,), partial(self._keep, some), beside=True)
            for member, theirs in self._by_member(unsafe)
            for some in _parts(theirs, self._at_once)
        ]
        tasks.do(wanted, self._round, stoppable=False)

    def _keep(self, clients: Sequence[int], rows: Arrays) -> None:
        self.bytes["state to here"] += array_bytes(rows)
        for place, client in enumerate(clients):
            self.store.put(client, to_tensors({name: np.array(value[place]) for name, value in rows.items()}))
        self._log.make_safe(clients, self._round)

    def digest(self, client: int) -> str:
        """See :meth:`Engine.digest`."""
        self._make_safe()
        return super().digest(client)

    def save(self, folder: Path, round: int) -> list[Segment]:
        """See :meth:`Engine.save`."""
        self._make_safe()
        return super().save(folder, round)

    def load(self, segments: Sequence[Segment], round: int) -> None:
        """See :meth:`Engine.load`."""
        super().load(segments, round)
        self._log.start(round)
        self._round = round
        if self._tasks is not None:
            wanted = [task for m in self.members for task in (WorkerTask(m, "reset", ()), *self._filling(m))]
            self._tasks.do(wanted, round, again=False)

    def states(self) -> Callable[[int], Tensors]:
        """See :meth:`Engine.states`."""
        self._make_safe()
        return super().states()

    def _filling(self, member: Member) -> Iterator[WorkerTask]:
        """What sends a worker the safe state of its clients, as far as it is not the initial one."""
        for some in _parts(self.store.kept(member.clients), self._at_once):
            rows = to_arrays(self.store.gather(some))
            self.bytes["state to workers"] += array_bytes(rows)
            yield WorkerTask(member, "put", (some, rows))

    def _refill(self, member: Member) -> None:
        """Bring a new worker's clients to where they are: from the safe state, by the rounds since.

        Raises:
            Lost: it is gone as well.
        """
        tasks = self._staff()
        for task in self._filling(member):
            tasks.crew.ask(member, task.what, *task.given)
        for done, clients in self._log.missed(set(member.clients)):
            version = tasks.hand(member, done.shared)
            for client in clients:
                extra = done.extra.get(client, {})
                tasks.crew.ask(member, "train", version, done.round, client, extra, True)
            replies = {client: done.replies[client] for client in clients if client in done.replies}
            tasks.crew.ask(member, "commit", clients, replies)

    # -- workers --------------------------------------------------------------------------------------------------

    @property
    def members(self) -> Sequence[Member]:
        """The workers there are at the moment."""
        return [] if self._tasks is None else self._tasks.crew.members

    def _staff(self) -> WorkerTasks:
        """The workers, with their clients' state; those that had to give up their places start again."""
        if self._tasks is None:
            if self._session.holder is not None:
                self._session.holder.rest()
            crew = Crew(self._session, self.setup, self._workers, self._check, self.bytes)
            self._tasks, self._session.holder = WorkerTasks(crew, self._refill, self._check, self._tell), self
            wanted = [task for member in crew.members for task in self._filling(member)]
            self._tasks.do(wanted, self._round, again=False)
        return self._tasks

    def rest(self) -> None:
        """Give the workers' places to another engine; they start again when there is something to do."""
        self._make_safe()
        self._end()

    def _end(self) -> None:
        if self._tasks is not None:
            self._tasks.crew.end()
            self._tasks = None
        if self._session.holder is self:
            self._session.holder = None

    def _warn(self) -> None:
        """Say once that workers compute with something else than this machine."""
        if self.members and self.members[0].version < 0:
            here = numerics_here()["CPU capability"]
            for host, there in sorted({(m.host, m.capability) for m in self.members if m.capability != here}):
                self.note(
                    f"{host} computes with {there} and this machine with {here}: the last bits of the numbers depend "
                    "on where a client is"
                )

    def _check(self) -> None:
        self.check_stop()  # which is set after the engine was made, and again

    def _tell(self, text: str) -> None:
        self.note(text)

    def close(self) -> None:
        """End the workers, and Ray if it was begun for them."""
        self._end()
        self._session.leave()


def _parts(clients: Sequence[int], size: int) -> Iterator[list[int]]:
    for i in range(0, len(clients), size):
        yield list(clients[i : i + size])
