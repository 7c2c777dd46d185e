"""Clients shared out to worker processes, each with one working model and its own threads.

Two processes of one thread each are faster than one process of two threads, and a client computes alone in either, so
the numbers are those of the serial engine bit for bit. The data set is never copied: with ``fork`` the workers see
the parent's pages, elsewhere tensors in shared memory.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing as mp
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from commonground.algorithms import Tensors
from commonground.engine.backends.base import StoreEngine, Which
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.worker import (
    Arrays,
    RoundArrays,
    Worker,
    answered,
    joined,
    largest_first,
    taken,
    to_arrays,
    to_tensors,
)
from commonground.engine.evaluation import blocks_of
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.errors import RunError

__all__ = ["STOPS", "ProcessEngine", "default_workers", "stops_held_back"]

STOPS = (signal.SIGINT, signal.SIGTERM)


def default_workers() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def stops_held_back() -> Iterator[None]:
    """Let a process start without being ended before it can ignore what is meant for its parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Let a process start before it can collect what its parent has left behind."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _serve(pipe: Connection, others: Sequence[Connection], setup: Setup, threads: int, collects: bool) -> None:
    """A worker's life: take tasks from the pipe until it is closed."""
    # What the parent has not collected yet is the parent's: a client of Ray's, say, whose end waits for threads that
    # are not here, and takes the worker with it.
    gc.freeze()
    if collects:
        gc.enable()
    # The parent alone reacts to Ctrl-C, and to the SIGTERM that systemd and Slurm send to all processes of a job: it
    # finishes with a checkpoint and ends the workers, for whom a signal may be waiting since they were started.
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    # Copies of the other workers' pipe ends must go, or their end is never seen.
    for other in others:
        other.close()
    torch.set_num_threads(threads)
    worker = Worker(setup)
    while True:
        try:
            kind, content = pipe.recv()
        except (EOFError, OSError):
            return
        if kind == "shared":
            worker.shared = to_tensors(content)
            continue
        answer = answered(partial(_train if kind == "train" else _evaluate, worker, *content))
        with contextlib.suppress(BrokenPipeError):
            try:
                pipe.send(answer)
            except (pickle.PicklingError, TypeError, AttributeError) as error:  # nothing has been sent yet
                pipe.send(("fault", f"what the worker found cannot be sent to the run's process: {error}"))


def _train(worker: Worker, round: int, client: int, personal: Arrays, extra: Arrays) -> RoundArrays:
    result = worker.train(round, client, to_tensors(personal), to_tensors(extra), key=client)
    return RoundArrays.of(result)


def _evaluate(
    worker: Worker, clients: Sequence[int], stored: Arrays, which: Which, round: int, detailed: bool
) -> Scores:
    return worker.evaluate(clients, to_tensors(stored), which, round, detailed=detailed)


class ProcessEngine(StoreEngine):
    """A pool of worker processes.

    Args:
        setup: data, model and algorithm; workers start with a copy of it.
    """

    name = "processes"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        config = setup.config
        wanted = min(config.workers or default_workers(), setup.data.clients)
        # Everything computed lazily is computed before the fork, once for all workers.
        _ = setup.inputs, setup.dropouts, setup.head_module
        context: Any = mp.get_context("fork" if sys.platform == "linux" else "spawn")
        self._workers: list[mp.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        for _number in range(wanted):
            here, there = context.Pipe()
            inherited = [*self._pipes, here] if context.get_start_method() == "fork" else []
            given = (there, inherited, setup, config.threads, gc.isenabled())
            worker = context.Process(target=_serve, args=given, daemon=True)
            with warnings.catch_warnings(), stops_held_back(), _no_collection():
                # Python 3.12 warns of forking beside other threads; a worker uses no lock that one could hold, and
                # PyTorch's own data loaders start in the same way.
                warnings.simplefilter("ignore", DeprecationWarning)
                worker.start()
            there.close()
            self._workers.append(worker)
            self._pipes.append(here)

    def _map(self, shared: Tensors, tasks: Sequence[tuple[str, Callable[[], Any]]]) -> list[Any]:
        """Answers to tasks, in their order; a worker gets its next task when it has answered the last one."""
        arrays = to_arrays(shared)
        answers: list[Any] = [None] * len(tasks)
        waiting = iter(enumerate(tasks))
        busy: dict[Connection, int] = {}

        def give(pipe: Connection) -> None:
            following = next(waiting, None)
            if following is not None:
                number, (kind, content) = following
                pipe.send((kind, content()))
                busy[pipe] = number

        try:
            for pipe in self._pipes[: len(tasks)]:
                pipe.send(("shared", arrays))
                give(pipe)
            while busy:
                for ready in wait(list(busy), timeout=0.2):
                    assert isinstance(ready, Connection)
                    answer = taken(ready.recv())
                    answers[busy.pop(ready)] = answer
                    give(ready)
                self.check_stop()
        except (EOFError, ConnectionError) as error:
            self.check_stop()  # who stops a job may end its workers by force as well
            ended = wait([worker.sentinel for worker in self._workers], timeout=1)
            for worker in self._workers:
                if worker.sentinel in ended:
                    worker.join(1)  # its pipes end before it has an exit code
            codes = [w.exitcode for w in self._workers if w.exitcode not in (None, 0)]
            raise RunError(
                f"a worker process ended unexpectedly ({_how(codes)}), perhaps for lack of memory; the run can be "
                "continued with --resume"
            ) from error
        return answers

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """See :meth:`Engine.train`; the largest clients start first, so that no worker is left waiting at the end."""
        order = largest_first(self.setup, clients)

        def task(client: int) -> tuple[str, Callable[[], Any]]:
            alone = to_arrays((extra or {}).get(client, {}))
            return "train", lambda: (round, client, to_arrays(self.store.get(client)), alone)

        answers: list[RoundArrays] = self._map(shared, [task(clients[i]) for i in order])
        by_place = dict(zip(order, answers, strict=True))
        return [by_place[i].result() for i in range(len(clients))]

    def evaluate(
        self,
        clients: Sequence[int],
        shared: Tensors,
        which: Which = "personal",
        round: int = 0,
        *,
        detailed: bool = False,
    ) -> Scores:
        """See :meth:`Engine.evaluate`."""

        def task(block: list[int]) -> tuple[str, Callable[[], Any]]:
            return "evaluate", lambda: (block, to_arrays(self.store.gather(block)), which, round, detailed)

        blocks = blocks_of(clients, self.setup.judged(which)[1])
        parts: list[Scores] = self._map(shared, [task(block) for block in blocks])
        return self.believable(joined(self.setup, parts, detailed=detailed), round, which)

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            worker.join(timeout=0.5)
            if worker.is_alive():
                worker.kill()
                worker.join()
        self._pipes, self._workers = [], []


def _how(codes: Sequence[int]) -> str:
    """How the first of some processes ended: by a signal, or with an exit code."""
    if not codes:
        return "exit code unknown"
    return f"signal {-codes[0]}" if codes[0] < 0 else f"exit code {codes[0]}"
