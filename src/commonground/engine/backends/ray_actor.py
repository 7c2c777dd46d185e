"""A worker on Ray: a process, on whatever host, that holds some clients' samples and personal state."""

from __future__ import annotations

import pickle
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import torch

from commonground.algorithms import Tensors
from commonground.data.part import part_of
from commonground.engine.backends.base import Which
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.backends.worker import Answer, Arrays, RoundArrays, Worker, answered, to_arrays
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.store import PersonalStore
from commonground.errors import ConfigError, RunError
from commonground.models import FrozenBaseModel
from commonground.precision import use_precision

__all__ = ["ClientActor", "Share", "numerics_here", "packed_samples", "packed_setup"]


def packed_setup(setup: Setup, pickler: Any) -> bytes:
    """A run without its data, as bytes for workers of the same run.

    Args:
        setup: of the run.
        pickler: Ray's, which knows functions and classes of a program; those of a user's file travel with it.
    """
    model, left_out = setup.model, ("data", "_splits")
    for name, module in list(sys.modules.items()):
        if name.startswith("commonground_user_"):  # made by load_object: no other process could import it
            pickler.register_pickle_by_value(module)
    if isinstance(model, FrozenBaseModel):
        model.keep_hidden(None)  # memory of this process
    try:
        carried = {f.name: getattr(setup, f.name) for f in fields(setup) if f.name not in left_out}
        if setup.config.dp_secret_noise:
            carried["secret"] = setup.noise  # one for all: a round that is repeated elsewhere has the same noise
        packed: bytes = pickler.dumps(carried)
    finally:
        setup.prepare_model()
    return packed


def packed_samples(setup: Setup, clients: Sequence[int]) -> bytes:
    """The samples of some clients, as bytes."""
    return pickle.dumps(part_of(setup.data, clients), protocol=5)


def numerics_here() -> dict[str, str]:
    """What the last bits of a number depend on besides the settings, and whether processes understand each other."""
    return {
        "Python": platform.python_version(),
        "commonground": version("commonground"),
        "torch": torch.__version__,
        "CPU capability": torch.backends.cpu.get_cpu_capability(),
    }


class Share:
    """Some clients' samples and state, and what is done with them.

    Args:
        setup: of the run, with these clients' samples alone.
        clients: their numbers in the federation, in the order of the samples.
    """

    def __init__(self, setup: Setup, clients: Sequence[int]) -> None:
        self.setup = setup
        self._worker = Worker(setup)
        self._place = {client: place for place, client in enumerate(clients)}
        self._store = PersonalStore(len(clients), setup.initial_personal)
        self._trained: dict[int, Tensors] = {}  # state after a round that does not count yet
        self._version = -1

    def receive(self, version: int, shared: Arrays) -> None:
        """Take the shared tensors of this version; views of the object store become memory of this process."""
        self._worker.shared = _copied(shared)
        self._version = version

    def train(self, version: int, round: int, client: int, extra: Arrays, quiet: bool = False) -> RoundArrays | None:
        """A client's round; its new state waits until the round counts.

        Args:
            version: of the shared tensors.
            round: 1-based round.
            client: its number.
            extra: what it alone is sent.
            quiet: whether nothing is sent back, since it was before.
        """
        self._check(version)
        place = self._place[client]
        result = self._worker.train(round, place, self._store.get(place), _copied(extra), key=client)
        self._trained[client] = dict(result.personal or {})
        return None if quiet else self._sent(client, result)

    def _sent(self, client: int, result: ClientResult) -> RoundArrays:
        kept = dict(result.personal or {})
        if self.setup.config.metrics != "full":  # which needs the states themselves
            kept = {name: _ends(value) for name, value in kept.items() if value.is_floating_point() and value.numel()}
        return RoundArrays.of(replace(result, personal=kept))._replace(client=client)

    def commit(self, clients: Sequence[int], replies: Mapping[int, Arrays]) -> None:
        """The last round of these clients counts; the server's replies overwrite what they name."""
        for client in clients:
            self._store.put(self._place[client], {**self._trained.pop(client), **_copied(replies.get(client, {}))})
        self._trained.clear()

    def evaluate(self, version: int, clients: Sequence[int], which: Which, round: int, detailed: bool) -> list[Scores]:
        """Each client's test, for itself: so figures do not depend on how clients are shared out."""
        self._check(version)
        return [self._test(client, which, round, detailed) for client in clients]

    def _test(self, client: int, which: Which, round: int, detailed: bool) -> Scores:
        place = self._place[client]
        stored = self._store.gather([place])
        scores = self._worker.evaluate([place], stored, which, round, detailed=detailed, key=client)
        return replace(scores, clients=scores.clients - place + client)

    def rows(self, clients: Sequence[int]) -> Arrays:
        """The state of clients, by name [n, …]."""
        return to_arrays(self._store.gather([self._place[client] for client in clients]))

    def put(self, clients: Sequence[int], rows: Arrays) -> None:
        """Set the state of clients."""
        for number, client in enumerate(clients):
            self._store.put(self._place[client], _copied({name: value[number] for name, value in rows.items()}))

    def reset(self) -> None:
        """All clients are as before their first round."""
        self._store.load([])
        self._trained.clear()

    def _check(self, version: int) -> None:
        if version != self._version:
            raise RunError(f"a worker has version {self._version} of the shared tensors instead of {version}")


def _copied(arrays: Arrays) -> Tensors:
    """Arrays as tensors with memory of their own: that of the object store cannot be written."""
    return {name: torch.tensor(value) for name, value in arrays.items()}


def _ends(value: torch.Tensor) -> torch.Tensor:
    """Smallest and largest value of a client's state, by which the asking process sees whether all of it is finite."""
    plain = torch.view_as_real(value) if value.is_complex() else value
    return torch.stack([plain.amin(), plain.amax()])


class ClientActor:
    """What Ray starts; every answer says itself how the task ended (see :func:`answered`)."""

    def __init__(self) -> None:
        self._share: Share | None = None

    def start(self, setup: bytes, samples: bytes, clients: Sequence[int]) -> Answer:
        """Take up a run and some of its clients; tells the host and what it computes with."""

        def begin() -> dict[str, str]:
            try:
                mine = Setup(**pickle.loads(setup), data=pickle.loads(samples))
            except (ImportError, AttributeError) as error:
                raise ConfigError(
                    f"the worker on {socket.gethostname()} cannot load the run ({error}): what a program imports must "
                    "be installed on every host of the cluster, in the same version"
                ) from None
            torch.set_num_threads(mine.config.threads)
            use_precision(mine.config.precision)
            mine.prepare_model()
            self._share = Share(mine, clients)
            import ray

            node = ray.get_runtime_context().get_node_id()
            return {"node": node, "host": socket.gethostname(), **numerics_here()}

        return answered(begin)

    def do(self, what: str, *given: Any) -> Answer:
        """A method of :class:`Share`, by its name."""
        assert self._share is not None
        torch.set_num_threads(self._share.setup.config.threads)  # a setting of the thread, of which Ray has several
        return answered(partial(getattr(self._share, what), *given))
