"""Server and clients as separate objects that exchange nothing but bytes.

This is the algorithm as it runs on a network, in one process: each client owns its data and a folder for its personal
tensors, rebuilds the model from the run's configuration, and answers messages. The server never sees a personal
tensor.

A client keeps the state of every round it took part in until the server says that a later one is safe in its
checkpoints; a task of round t starts from the newest state before t. So a server that falls back to a checkpoint and
repeats rounds gets the same answers.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from commonground.algorithms import Tensors, Update
from commonground.data import FederatedDataset
from commonground.engine.backends.base import ClientResult, Engine, Which
from commonground.engine.backends.serial import run_client, score_clients
from commonground.engine.backends.serialization import pack, unpack
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.evaluation import Scores
from commonground.engine.setup import Setup
from commonground.engine.state.client import ClientStates
from commonground.engine.state.digests import digest
from commonground.engine.state.segment import Segment
from commonground.errors import UpdateError

__all__ = ["MessageClient", "MessageEngine"]


class MessageClient:
    """A client of the federation: its own data, its own folder, and an answer to every message.

    Args:
        setup: the run on the client's side; its data set holds this one client.
        number: the client's number in the federation, which keys its draws.
        folder: where it keeps its personal tensors.
        durable: whether they have to outlast a power cut.
    """

    def __init__(self, setup: Setup, number: int, folder: Path, *, durable: bool = True) -> None:
        self.setup = setup
        self.number = number
        self.states = ClientStates(folder, number, durable=durable)

    def handle(self, message: bytes) -> bytes:
        """Answer one message of the server."""
        fields, shared = unpack(message)
        answer: dict[str, Any]
        if fields["kind"] == "train":
            if fields["since"] is not None:
                shared = {**self._remembered(fields["since"]), **shared}
            self.states.forget(fields["round"], fields["safe"])
            if self.setup.algorithm.clients_remember:
                names = self.setup.initial_shared
                self.states.keep(fields["round"], {n: v for n, v in shared.items() if n in names}, "shared")
            personal = self._newest(fields["round"], fields["last"])
            result = run_client(SequentialClient(self.setup), fields["round"], 0, shared, personal, key=self.number)
            self.states.keep(fields["round"], result.personal or {})
            answer = {"client": self.number, "samples": result.update.samples, "loss": result.loss}
            return pack(answer, result.update.tensors)
        personal = self._newest(fields["round"] + 1, fields.get("last", 0))
        if fields["kind"] == "reply":
            self.states.keep(fields["round"], {**personal, **shared})
            answer = {}
        elif fields["kind"] == "evaluate":
            stacked = {name: value.unsqueeze(0) for name, value in personal.items()}
            scores = score_clients(
                SequentialClient(self.setup), [0], shared, stacked, fields["which"], fields["round"], key=self.number
            )
            sums = {name: value[0].tolist() for name, value in scores.sums.items()}
            answer = {"sums": sums, "count": int(scores.count[0]), "loss": float(scores.loss[0])}
        else:
            answer = {"digest": digest(personal)}
        return pack(answer, {})

    def _remembered(self, round: int) -> Tensors:
        """The shared tensors as they were sent in an earlier round."""
        shared = self.states.shared(round)
        if shared is None:
            raise UpdateError(f"client {self.number} no longer has what it was sent in round {round}")
        return shared

    def _newest(self, before: int, last: int = 0) -> Tensors:
        """Personal tensors after the last round before ``before`` in which the client took part: ``last`` or later."""
        newest = self.states.newest(before, last if self.setup.initial_personal else 0)
        return self.setup.initial_personal if newest is None else newest


class MessageEngine(Engine):
    """The server's side of the message transport.

    Args:
        setup: the run.
        folder: parent of the clients' folders; a temporary one by default.
        deliver: carries a message to a client and brings the answer; by default to :class:`MessageClient` objects in
            this process.
    """

    name = "messages"

    def __init__(
        self, setup: Setup, folder: Path | None = None, deliver: Callable[[int, bytes], bytes] | None = None
    ) -> None:
        super().__init__(setup)
        self.folder = Path(tempfile.mkdtemp(prefix="commonground-clients-")) if folder is None else Path(folder)
        # A temporary folder goes with the engine, which a finished run keeps to read the clients' tensors.
        self._remove = weakref.finalize(self, shutil.rmtree, self.folder, True) if folder is None else None
        self._read_later = False
        self.deliver = deliver or self._to_client
        self._round = 0
        self._saved = 0  # round of the last checkpoint
        self._safe = 0  # and of the one before, to which the run may still fall back

    def _to_client(self, number: int, message: bytes) -> bytes:
        data = _only(self.setup.data, number)
        setup = replace(self.setup, data=data, _splits={})
        setup.prepare_model()
        folder = self.folder / f"client-{number}"
        return MessageClient(setup, number, folder, durable=self._remove is None).handle(message)

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """See :meth:`Engine.train`."""
        results = []
        for client in clients:
            self.check_stop()
            since, names = self.known.get(client, (None, frozenset()))
            news = {name: value for name, value in shared.items() if name not in names}
            header = {"kind": "train", "round": round, "safe": self._safe, "since": since, "last": self._last(client)}
            message = pack(header, {**news, **(extra or {}).get(client, {})})
            who = f"client {self.setup.data.client_name(client)} in round {round}"
            try:
                fields, tensors = unpack(self.deliver(client, message))
                tensors = self.setup.moved(tensors)
                samples, loss = fields["samples"], None if fields["loss"] is None else float(fields["loss"])
            except (UpdateError, KeyError, TypeError, ValueError) as error:
                raise UpdateError(f"the answer of {who} cannot be used: {error}") from None
            results.append(ClientResult(Update(client, samples, tensors), loss))
        self._round = round
        return results

    def commit(self, round: int, results: Sequence[ClientResult], replies: Mapping[int, Tensors] | None = None) -> None:
        """Send the replies; the clients keep their own state, and a repeated round replaces it."""
        for client, reply in (replies or {}).items():
            self.deliver(client, pack({"kind": "reply", "round": round}, reply))

    def evaluate(self, clients: Sequence[int], shared: Tensors, which: Which = "personal", round: int = 0) -> Scores:
        """See :meth:`Engine.evaluate`; every client tests itself."""
        message = pack({"kind": "evaluate", "round": round, "which": which}, shared)
        answers = []
        for client in clients:
            self.check_stop()
            answers.append(unpack(self.deliver(client, message))[0])
        return Scores(
            np.asarray(clients, dtype=np.int64),
            np.array([a["count"] for a in answers]),
            np.array([a["loss"] for a in answers]),
            {name: np.array([a["sums"][name] for a in answers], dtype=np.float64) for name in answers[0]["sums"]},
            self.setup.data.task,
        )

    def digest(self, client: int) -> str:
        """See :meth:`Engine.digest`; computed by the client."""
        message = pack({"kind": "digest", "round": self._round, "last": self._last(client)}, {})
        return str(unpack(self.deliver(client, message))[0]["digest"])

    def _last(self, client: int) -> int:
        """The round whose state a client must still have; 0 if it has not taken part."""
        return 0 if self.last_rounds is None else max(0, int(self.last_rounds[client]))

    def save(self, folder: Path, round: int) -> list[Segment]:
        """Nothing: clients keep their own state. What they had at the checkpoint before is safe from now on."""
        self._safe, self._saved = self._saved, round
        return []

    def load(self, segments: Sequence[Segment], round: int) -> None:
        """See :meth:`Engine.load`."""
        self._round = self._saved = round
        self._safe = 0

    def states(self) -> Callable[[int], Tensors]:
        """See :meth:`Engine.states`; they are read from the clients' folders."""
        self._read_later = True
        return self._state_of

    def _state_of(self, client: int) -> Tensors:
        newest = ClientStates(self.folder / f"client-{client}", client).newest(self._round + 1)
        return self.setup.initial_personal if newest is None else newest

    def close(self) -> None:
        """Remove the clients' folders if they are temporary; if :meth:`states` were asked for, with the last reader."""
        if self._remove is not None and not self._read_later:
            self._remove()


def _only(data: FederatedDataset, client: int) -> FederatedDataset:
    """A data set with one client's samples alone."""
    train, test = data.train_indices(client), data.test_indices(client)
    return FederatedDataset.from_arrays(
        [(data.x_train[train], data.y_train[train], data.x_test[test], data.y_test[test])],
        name=data.name,
        classes=data.classes,
        class_names=data.class_names,
        preprocess=data.preprocess,
        client_names=(data.client_name(client),),
        task=data.task,
        noise=None if data.noise is None else data.noise.of([client]),
    )
