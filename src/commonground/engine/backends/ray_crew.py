"""Workers on Ray: where they are placed, started, and replaced when they are lost."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from commonground.engine.backends.ray_actor import ClientActor, numerics_here, packed_samples, packed_setup
from commonground.engine.backends.ray_session import Session
from commonground.engine.backends.worker import taken
from commonground.engine.setup import Setup
from commonground.errors import ConfigError, RunError

__all__ = ["Crew", "Lost", "Member", "shares_of"]

POLL = 0.2  # seconds between two looks at whether the user wants to stop
CPU_SECONDS = 3.0  # in which a CPU whose worker has ended is free again
START_SECONDS = 120.0  # in which a worker starts, if a CPU is free


# Of an error's classes, by their names, the first that is here.
_LOSSES = {
    "OutOfMemoryError": "Ray ended it for lack of memory",
    "NodeDiedError": "its host is gone",
    "ActorUnavailableError": "it cannot be reached any more",
    "RayActorError": "its process ended",
    "ObjectLostError": "its answer went with its host",
}


class Lost(Exception):
    """A worker's process or host is gone, or does not answer any more."""


class Late(Lost):
    """A worker does not start in the time in which it should."""


@dataclass(eq=False)
class Member:
    """A worker.

    Attributes:
        clients: whose samples and state it holds.
        actor: Ray's handle of it.
        node: Ray's name of where it is.
        host: the host's name.
        capability: what PyTorch calls the kind of its CPU.
        version: of the shared tensors that it was sent last.
    """

    clients: list[int]
    actor: Any = None
    node: str = ""
    host: str = ""
    capability: str = ""
    version: int = -1


def shares_of(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Clients shared out to workers, so that each has about as many samples; each share in ascending order.

    Args:
        sizes: [clients] samples of each client.
        workers: how many there are, at most as many as clients.
    """
    shares: list[list[int]] = [[] for _ in range(workers)]
    loads = [(0, worker) for worker in range(workers)]
    for client in sorted(range(len(sizes)), key=lambda c: -int(sizes[c])):
        load, worker = heapq.heappop(loads)
        shares[worker].append(client)
        heapq.heappush(loads, (load + int(sizes[client]), worker))
    return [sorted(share) for share in shares]


class Crew:
    """The workers of one engine.

    Args:
        session: the connection to Ray.
        setup: of the run.
        workers: how many there are.
        check_stop: raises if the user wants to stop.
        count: of the bytes that cross between processes, by what they are.

    Raises:
        ConfigError: a host has other software, or lacks what the run needs.
        RunError: a worker does not start.
    """

    def __init__(
        self,
        session: Session,
        setup: Setup,
        workers: int,
        check_stop: Callable[[], None],
        count: Counter[str],
    ) -> None:
        self.session, self.setup, self._check_stop = session, setup, check_stop
        self.bytes = count
        self._ray = session.ray
        self.members = [Member(share) for share in shares_of(setup.data.train_sizes.tolist(), workers)]
        try:
            packed = packed_setup(setup, self._ray.cloudpickle)
            self.bytes["setup"] += len(packed) * workers
            self._packed = self.put(packed)
            begun = [(member, *self._begin(member, {"num_cpus": 1})) for member in self.members]
            for member, answer, _samples in begun:
                self._started(member, answer, START_SECONDS)
        except Lost as error:
            self.end()
            needs = "each of its hosts needs this version of CommonGround and of what it is installed with"
            if isinstance(error, Late):
                needs = "its hosts are busy with other work, or slow; fewer --workers start sooner"
            raise RunError(f"a worker does not start on {session.name}: {error}; {needs}") from None
        except BaseException:
            self.end()
            raise

    # -- asking ---------------------------------------------------------------------------------------------------

    def put(self, content: Any) -> Any:
        """Ray's reference to something that several workers get, or one of them as soon as it is there.

        Raises:
            RunError: there is no room for it.
        """
        try:
            return self._ray.put(content)
        except self._ray.exceptions.RayError as error:
            raise RunError(f"{self.session.name} takes no more data: {_line(error)}") from error

    def ready(self, answers: list[Any]) -> list[Any]:
        """Those of the answers that are there; none if none comes soon."""
        found: list[Any] = self._ray.wait(answers, timeout=POLL)[0]
        return found

    def send(self, member: Member, what: str, *given: Any) -> Any:
        """Ask a worker for something (a method of its :class:`Share`); Ray's reference to the answer."""
        return member.actor.do.remote(what, *given)

    def look(self, member: Member, what: str, *given: Any) -> Any:
        """As :meth:`send`, beside what the worker does at the moment."""
        return member.actor.do.options(concurrency_group="look").remote(what, *given)

    def ask(self, member: Member, what: str, *given: Any) -> Any:
        """What a worker answers.

        Raises:
            Lost: it is gone.
        """
        return self._wait(self.send(member, what, *given))

    def get(self, answer: Any) -> Any:
        """What an answer says that is there.

        Raises:
            Lost: the worker that would have given it is gone.
            RunError: it failed outside of the task.
        """
        try:
            return taken(self._ray.get(answer))
        except self._ray.exceptions.RayTaskError as error:
            raise RunError(f"a worker on {self.session.name} failed: {_line(error)}") from error
        except self._ray.exceptions.RayError as error:
            raise Lost(_line(error)) from None

    def _wait(self, answer: Any, seconds: float = float("inf")) -> Any:
        end = time.monotonic() + seconds
        while not self._ray.wait([answer], timeout=POLL)[0]:
            self._check_stop()
            if time.monotonic() > end:
                raise Late(f"it did not within {seconds:g} seconds")
        return self.get(answer)

    # -- starting and ending --------------------------------------------------------------------------------------

    def _begin(self, member: Member, options: dict[str, Any]) -> tuple[Any, Any]:
        """Let a worker start; references to its answer and to its samples, which must live until it has them."""
        # Rows are read while a client trains: a run that is stopped does not wait for the end of that.
        options = {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": {"look": 1}, **options}
        member.actor = self._ray.remote(**options)(ClientActor).remote()
        packed = packed_samples(self.setup, member.clients)
        self.bytes["samples"] += len(packed)
        samples = self.put(packed)
        return member.actor.start.remote(self._packed, samples, member.clients), samples

    def _started(self, member: Member, answer: Any, seconds: float) -> None:
        told = self._wait(answer, seconds)
        member.node, member.host, member.capability = told["node"], told["host"], told["CPU capability"]
        member.version = -1
        here = numerics_here()
        for name in ("commonground", "torch"):
            if told[name] != here[name]:
                raise ConfigError(f"{member.host} has {name} {told[name]}, and this machine has {here[name]}")

    def replace(self, member: Member) -> None:
        """Start a worker anew: on a free CPU, or beside another worker.

        Raises:
            RunError: there is no place for it.
        """
        self._kill(member)
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        others = Counter(m.node for m in self.members if m is not member and m.actor is not None and m.node in alive)
        with contextlib.suppress(Lost):
            if self.session.free_cpus(1, CPU_SECONDS if others else START_SECONDS, self._check_stop):
                answer, _samples = self._begin(member, {"num_cpus": 1})
                self._started(member, answer, START_SECONDS / 4)
                return
        self._kill(member)
        for node, _ in reversed(others.most_common()):
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            with contextlib.suppress(Lost):
                answer, _samples = self._begin(member, {"num_cpus": 0, "scheduling_strategy": affinity})
                self._started(member, answer, START_SECONDS)
                return
            self._kill(member)
        raise RunError(
            f"{self.session.name} has no place any more for a worker; the run can be continued with --resume"
        )

    def _kill(self, member: Member) -> None:
        if member.actor is not None:
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.kill(member.actor)
        member.actor = None

    def end(self) -> None:
        """End all workers."""
        for member in self.members:
            self._kill(member)


def _line(error: BaseException) -> str:
    """What an error of Ray comes to, in one line."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    for kind, said in _LOSSES.items():
        if kind in kinds:
            return said
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")[:200]
