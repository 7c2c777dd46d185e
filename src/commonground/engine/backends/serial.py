"""One client after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from commonground.algorithms import Tensors, Update
from commonground.engine.backends.base import StoreEngine, Which
from commonground.engine.backends.client_result import ClientResult
from commonground.engine.clients.sent import sent_by
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.evaluation import blocks_of, evaluate_block
from commonground.engine.private.clients import kept_state, protected
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.privacy import NoiseSource
from commonground.user_code import failing_as

__all__ = ["SerialEngine", "run_client", "score_clients"]


def run_client(
    trainer: SequentialClient,
    round: int,
    client: int,
    received: Tensors,
    personal: Tensors,
    *,
    key: int | None = None,
    noise: NoiseSource | None = None,
) -> ClientResult:
    """A client's whole round on a working model.

    Args:
        trainer: the working model.
        round: 1-based round.
        client: the client's position in the data set at hand.
        received, personal: what the server sent and what the client kept.
        key: the client's number in the federation; by default its position.
        noise: where the client's own noise comes from (``--dp-where client``, ``--dp example``); by default as
            the run's settings say.
    """
    setup, number = trainer.setup, client if key is None else key
    with (
        failing_as(f"training client {setup.data.client_name(client)} in round {round} failed"),
        setup.keyed("training", round, number),
    ):
        trainer.begin(round, client, number, received, personal)
        trainer.noise = noise
        sent = sent_by(setup.algorithm, trainer, round)
    sent = protected(setup, round, number, received, personal, sent, noise)
    kept = {name: trainer.live[name].detach().clone() for name in setup.personal_names}
    own = kept_state(setup, personal, kept | trainer.state)
    return ClientResult(Update(client, trainer.size, sent), trainer.loss, own)


def score_clients(
    trainer: SequentialClient,
    clients: Sequence[int],
    shared: Tensors,
    stored: Tensors,
    which: Which,
    round: int,
    *,
    key: int | None = None,
    detailed: bool = False,
) -> Scores:
    """Test a few clients' models with one working model.

    Args:
        trainer: the working model.
        clients: their positions in the data set at hand.
        shared: the shared tensors.
        stored: the clients' personal tensors and state, stacked.
        which: models and rows.
        round: rounds done.
        key: as in :func:`run_client`, for a single client.
        detailed: tell the finer figures as well.
    """
    setup = trainer.setup
    test = partial(evaluate_block, setup, stack=False, split=setup.judged(which)[0], detailed=detailed)
    if not setup.tests_personal(which):
        return test(clients, shared, {}, key=key)
    if not setup.algorithm.personalizes:
        own_models = setup.personal_models(shared, stored)
        return test(clients, shared, own_models, key=key)
    parts = []
    for c, client in enumerate(clients):
        own = {name: value[c] for name, value in stored.items()}
        number = client if key is None else key
        with (
            failing_as(f"training client {setup.data.client_name(client)} for its test failed"),
            setup.keyed("training", round, number),
        ):
            trainer.begin(round, client, number, shared, own)
            trainer.at_home()
            setup.algorithm.personalize(trainer, round)
        tuned = {name: value.detach().clone().unsqueeze(0) for name, value in trainer.live.items()}
        parts.append(test([client], shared, tuned, key=number))
    return Scores.join(parts)


class SerialEngine(StoreEngine):
    """The reference: every other engine is compared with it."""

    name = "serial"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._solo = SequentialClient(setup)

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[ClientResult]:
        """See :meth:`Engine.train`."""
        results = []
        for client in clients:
            self.check_stop()
            received = {**shared, **(extra or {}).get(client, {})}
            results.append(run_client(self._solo, round, client, received, self.store.get(client)))
        return results

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
        for block in blocks_of(clients, self.setup.judged(which)[1]):
            self.check_stop()
            stored = self.store.gather(block)
            yield score_clients(self._solo, block, shared, stored, which, round, detailed=detailed)
