"""Tasks given out to workers on Ray, and repeated where a worker is lost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from commonground.algorithms import Tensors
from commonground.engine.backends.ray_crew import Crew, Lost, Member
from commonground.engine.backends.ray_log import array_bytes
from commonground.engine.backends.worker import Arrays, to_arrays
from commonground.errors import RunError

__all__ = ["WorkerTask", "WorkerTasks", "copies"]

AHEAD = 2  # tasks that a worker has at a time: the next one is there when it has done the first
MOST_LOSSES = 3  # of one worker while the same tasks are done


@dataclass(frozen=True)
class WorkerTask:
    """Something that a worker is asked for.

    Attributes:
        member: the worker.
        what: a method of its :class:`~commonground.engine.backends.ray_actor.Share`.
        given: its arguments.
        take: what is made of the answer when it comes.
        beside: whether it is done beside what the worker does at the moment.
    """

    member: Member
    what: str
    given: tuple[Any, ...]
    take: Callable[[Any], Any] = lambda answer: answer
    beside: bool = False


def copies(tensors: Tensors) -> Arrays:
    """Tensors as arrays of their own."""
    return {name: value.copy() for name, value in to_arrays(tensors).items()}


class WorkerTasks:
    """Gives tasks to the workers of a crew.

    Args:
        crew: the workers.
        refill: gives a worker that was started anew the state that its predecessor had.
        check_stop: raises if the user wants to stop.
        note: tells the user what is worth a line.
    """

    def __init__(
        self,
        crew: Crew,
        refill: Callable[[Member], None],
        check_stop: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self.crew, self._refill, self._check_stop, self._note = crew, refill, check_stop, note
        self._reference: Any = None  # of the shared tensors in Ray's object store
        self._versions = count()
        self.version = -1
        self.shared: Arrays = {}

    # -- shared tensors -------------------------------------------------------------------------------------------

    def offer(self, shared: Tensors) -> None:
        """Let the workers have these shared tensors from their next task on; a worker is sent the same ones once."""
        if self.version < 0 or not _same(self.shared, shared):
            self.shared, self.version = copies(shared), next(self._versions)
            self._reference = self.crew.put(self.shared)

    def hand(self, member: Member, past: Arrays | None = None) -> int:
        """Send a worker the shared tensors, or those of a past round, if it has others; their version."""
        if past is not None:
            self._send_shared(member, next(self._versions), self.crew.put(past), past)
        elif member.version != self.version:
            self._send_shared(member, self.version, self._reference, self.shared)
        return member.version

    def _send_shared(self, member: Member, version: int, reference: Any, shared: Arrays) -> None:
        self.crew.send(member, "receive", version, reference)
        member.version = version
        self.crew.bytes["shared tensors"] += array_bytes(shared)

    # -- tasks ----------------------------------------------------------------------------------------------------

    def do(self, tasks: Sequence[WorkerTask], round: int, *, again: bool = True, stoppable: bool = True) -> list[Any]:
        """Answers to tasks, in their order.

        Args:
            tasks: each worker does its own in this order.
            round: under way, for what is told.
            again: whether all tasks of a worker that is lost are done anew: its successor has done none of them.
            stoppable: whether the user can stop it.

        Raises:
            RunError: a worker is lost again and again.
        """
        answers: list[Any] = [None] * len(tasks)
        own: dict[Member, list[int]] = {}
        for number, task in enumerate(tasks):
            own.setdefault(task.member, []).append(number)
        waiting = {member: deque(numbers) for member, numbers in own.items()}
        flying: dict[Any, int] = {}
        losses: Counter[Member] = Counter()

        def give(member: Member) -> None:
            queue, flown = waiting[member], sum(tasks[n].member is member for n in flying.values())
            for _ in range(min(AHEAD - flown, len(queue))):
                number = queue.popleft()
                flying[self._send(tasks[number])] = number

        for member in own:
            give(member)
        while flying:
            for answer in self.crew.ready(list(flying)):
                if answer not in flying:
                    continue  # of a worker that is lost
                number = flying.pop(answer)
                member = tasks[number].member
                try:
                    answers[number] = tasks[number].take(self.crew.get(answer))
                except Lost as error:
                    losses[member] += 1
                    flying = {ref: n for ref, n in flying.items() if tasks[n].member is not member}
                    self._replace(member, round, error, losses[member])
                    waiting[member] = deque(own[member] if again else ())
                give(member)
            if stoppable:
                self._check_stop()
        return answers

    def _send(self, task: WorkerTask) -> Any:
        if task.beside:
            return self.crew.look(task.member, task.what, *task.given)
        self.hand(task.member)
        return self.crew.send(task.member, task.what, *task.given)

    def _replace(self, member: Member, round: int, error: Lost, losses: int) -> None:
        """Put a new worker in the place of one that is lost."""
        self._check_stop()  # who stops a job may end its workers by force as well
        host = member.host
        while True:
            if losses > MOST_LOSSES:
                raise RunError(
                    f"a worker on {self.crew.session.name} was lost {losses} times in round {round}, perhaps for lack "
                    f"of memory ({error}); the run can be continued with --resume"
                )
            try:
                self.crew.replace(member)
                self._refill(member)
                break
            except Lost as lost:
                losses, error = losses + 1, lost
        self._note(
            f"round {round}: a worker on {host} was lost ({error}); a new one on {member.host} has taken its "
            f"{len(member.clients)} clients and repeats their part"
        )


def _same(arrays: Arrays, tensors: Tensors) -> bool:
    """Whether tensors are these arrays, bit for bit."""
    if arrays.keys() != tensors.keys():
        return False
    pairs = [(arrays[name], value) for name, value in to_arrays(tensors).items()]
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)
