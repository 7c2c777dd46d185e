"""All clients of a round stacked on a leading axis, in cohorts that fit in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from commonground.algorithms import Tensors, Update
from commonground.devices import device_bytes_free
from commonground.engine.backends.base import StoreEngine, Which
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.clients.sent import check_stacked, sent_by
from commonground.engine.clients.stacked import StackedClients
from commonground.engine.clients.stacking_trial import check_stackable
from commonground.engine.evaluation import blocks_of, evaluate_block
from commonground.engine.private.clients import kept_state, protected
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.errors import ConfigError, RunError
from commonground.models import FrozenBaseModel
from commonground.user_code import failing_as

__all__ = ["COHORT_NUMBERS", "BatchedEngine", "numbers_of_client"]

_T = TypeVar("_T")

# Numbers (inputs and weights) that one cohort may hold at once on the host: 1 GiB in float32.
COHORT_NUMBERS = 1 << 28
# Share of a device's free memory for a cohort; activations and what PyTorch keeps for itself need the rest.
COHORT_SHARE = 0.4


class BatchedEngine(StoreEngine):
    """Stacked local training (see :class:`~commonground.engine.clients.stacked.StackedClients`)."""

    name = "batched"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        check_stackable(setup)
        self._cohort = StackedClients(setup)
        self._room = _room(setup.device)
        self._tested_at_once = sys.maxsize

    def _cohorts(self, clients: Sequence[int]) -> Iterator[list[int]]:
        """Cut the clients into cohorts by what they need in memory."""
        sizes = self.setup.data.train_sizes
        cohort: list[int] = []
        largest = 0
        for client in clients:
            largest = max(largest, int(sizes[client]))
            if cohort and (len(cohort) + 1) * numbers_of_client(self.setup, largest) > self._room:
                yield cohort
                cohort, largest = [], int(sizes[client])
            cohort.append(client)
        if cohort:
            yield cohort

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """See :meth:`Engine.train`."""
        cohorts = [part for cohort in self._cohorts(clients) for part in _alike(cohort, extra or {})]
        results = {r.update.client: r for cohort in cohorts for r in self._train(round, cohort, shared, extra)}
        return [results[client] for client in clients]

    def _train(
        self, round: int, members: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None
    ) -> list[ClientResult]:
        """The round of one cohort, in parts if it does not fit into the device's memory."""
        return self._as_fits(members, lambda part: self._train_together(round, part, shared, extra))

    def _as_fits(
        self, members: Sequence[int], compute: Callable[[Sequence[int]], list[_T]], *, tests: bool = False
    ) -> list[_T]:
        """What is computed of clients together, or of fewer at once where they do not fit into the device's memory.

        Raises:
            RunError: one client alone does not fit.
        """
        found, at_once = list[_T](), self._tested_at_once if tests else len(members)
        while members:
            self.check_stop()
            part, fits = members[:at_once], True
            try:
                found += compute(part)
            except torch.OutOfMemoryError:
                fits = False
            # Outside of the handler, whose traceback holds the tensors of the attempt.
            if fits:
                members = members[at_once:]
            else:
                at_once = self._make_room(part, tests)
        return found

    def _make_room(self, part: Sequence[int], tests: bool) -> int:
        """How many clients go on at once where these did not fit; what comes later begins with no more than so many."""
        if len(part) == 1:
            raise RunError(
                f"client {self.setup.data.shown_name(part[0])} alone needs more memory than "
                f"{self.setup.device} has; choose a smaller --batch-size or model, or --device cpu"
            )
        half = len(part) // 2
        if tests:
            self._tested_at_once = half
        else:
            largest = int(self.setup.data.train_sizes[list(part)].max())
            self._room = min(self._room, half * numbers_of_client(self.setup, largest))
        self.note(
            f"{len(part)} clients at once do not fit into the memory of {self.setup.device}; going on with {half}"
        )
        self._cohort = StackedClients(self.setup)  # the other one holds what was made for these
        if self.setup.device.type == "cuda":
            torch.cuda.empty_cache()
        return half

    def _train_together(
        self, round: int, members: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None
    ) -> list[ClientResult]:
        cohort = self._cohort
        alone = [(extra or {}).get(client, {}) for client in members]
        with self._unkeyed("training", round):
            before = self.store.gather(members)
            cohort.begin(round, members, shared, before, alone)
            if self.setup.config.dp is None:
                before = {}  # only a private run may have to go back to it
            sent = sent_by(self.setup.algorithm, cohort, round)
            check_stacked(self.setup.algorithm, sent, len(members))
        cohort.stack(self.setup.personal_names)
        kept = {name: cohort.values[name].detach() for name in self.setup.personal_names} | cohort.state
        received = [{**shared, **own} for own in alone]
        parts, own = [], []
        for c, client in enumerate(members):
            mine = _of(before, c)
            parts.append(protected(self.setup, round, client, received[c], mine, _of(sent, c)))
            own.append(kept_state(self.setup, mine, _of(kept, c)))
        losses = [None] * len(members) if cohort.loss is None else cohort.loss.unbind()
        return [
            ClientResult(Update(client, int(cohort.sizes[c]), parts[c]), losses[c], own[c])
            for c, client in enumerate(members)
        ]

    @contextmanager
    def _unkeyed(self, purpose: str, round: int) -> Iterator[None]:
        """While open, nothing may be drawn but by key: a user's code would draw for all clients at once."""
        with failing_as(f"training in round {round} failed"), self.setup.keyed(purpose, round) as drawn:
            yield
            drew = drawn()
        if drew:
            raise ConfigError(
                "the model or the method draws random numbers that the engine 'batched' cannot give to each client by "
                "itself; use --engine processes or serial"
            )

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
        tests = self._blocks(clients, shared, which, round, detailed)
        return self.believable(Scores.gathered(tests, len(clients)), round, which)

    def _blocks(
        self, clients: Sequence[int], shared: Tensors, which: Which, round: int, detailed: bool
    ) -> Iterator[Scores]:
        """The tests of one block of clients after the other."""
        setup = self.setup
        split, sizes = setup.judged(which)

        def test(part: Sequence[int]) -> list[Scores]:
            own = self._models_of(part, shared, round) if setup.tests_personal(which) else {}
            return [evaluate_block(setup, part, shared, own, stack=True, split=split, detailed=detailed)]

        for block in blocks_of(clients, sizes):
            yield from self._as_fits(block, test, tests=True)

    def _models_of(self, clients: Sequence[int], shared: Tensors, round: int) -> Tensors:
        """The tensors in which the clients' own models differ, stacked."""
        setup, stored = self.setup, self.store.gather(clients)
        if not setup.algorithm.personalizes:
            return setup.personal_models(shared, stored)
        with self._unkeyed("training", round):
            self._cohort.begin(round, clients, shared, stored)
            self._cohort.at_home()
            setup.algorithm.personalize(self._cohort, round)
            return self._cohort.whole_models()


def numbers_of_client(setup: Setup, largest: int) -> int:
    """Numbers that a client of a cohort takes in memory: its weights four times (gradients, momentum), or five times
    where the optimizer has two memories, its samples, and what a pass of a large frozen model keeps of its batch.

    Args:
        setup: of the run.
        largest: training samples of the cohort's largest client.
    """
    weights = (4 if setup.config.optimizer in (None, "sgd") else 5) * sum(v.numel() for v in setup.initial.values())
    return weights + 2 * setup.data.numbers_per_sample * largest + _kept(setup, largest)


def _kept(setup: Setup, largest: int) -> int:
    """Numbers that a training pass of one client's batch keeps in a large frozen model."""
    if not isinstance(setup.model, FrozenBaseModel):
        return 0
    rows = min(largest, setup.config.batch_size)
    outputs = 3 * setup.numbers_per_output  # with their gradients, and what the loss makes of them
    return rows * (setup.model.numbers_per_token * setup.data.sample_shape[0] + outputs)


def _room(device: torch.device) -> float:
    """Numbers that one cohort may hold at once."""
    free = device_bytes_free(device)
    return COHORT_NUMBERS if free is None else COHORT_SHARE * free / 4


def _of(stacked: Tensors, client: int) -> Tensors:
    """One client's tensors of several clients' stacked ones."""
    return {name: value[client] for name, value in stacked.items()}


def _alike(members: Sequence[int], extra: Mapping[int, Tensors]) -> list[list[int]]:
    """Clients by the names of what the server sends to each alone: stacked are those that have the same."""
    parts: dict[frozenset[str], list[int]] = {}
    for client in members:
        parts.setdefault(frozenset(extra.get(client, {})), []).append(client)
    return list(parts.values())
