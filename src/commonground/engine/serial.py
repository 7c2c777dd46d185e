"""One client after the other, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commonground.algorithms import Tensors, Update
from commonground.engine.base import Report, StoreEngine, Which
from commonground.engine.evaluation import Scores, blocks_of, evaluate_block
from commonground.engine.setup import Setup
from commonground.engine.solo import Solo

__all__ = ["SerialEngine", "run_client", "score_clients"]


def run_client(
    solo: Solo, round: int, client: int, received: Tensors, personal: Tensors, *, key: int | None = None
) -> Report:
    """A client's whole round on a working model.

    Args:
        solo: the working model.
        round: 1-based round.
        client: the client's position in the data set at hand.
        received, personal: what the server sent and what the client kept.
        key: the client's number in the federation; by default its position.
    """
    setup = solo.setup
    solo.begin(round, client, client if key is None else key, received, personal)
    sent = setup.algorithm.client_update(solo, round)
    kept = {name: solo.live[name].detach().clone() for name in setup.personal_names}
    return Report(Update(client, solo.size, sent), solo.loss, kept | solo.state)


def score_clients(
    solo: Solo,
    clients: Sequence[int],
    shared: Tensors,
    stored: Tensors,
    which: Which,
    round: int,
    *,
    key: int | None = None,
) -> Scores:
    """Test a few clients' models with one working model.

    Args:
        solo: the working model.
        clients: their positions in the data set at hand.
        shared: the shared tensors.
        stored: the clients' personal tensors and state, stacked.
        which: ``personal`` or ``global``.
        round: rounds done.
        key: as in :func:`run_client`, for a single client.
    """
    setup = solo.setup
    if which == "global":
        return evaluate_block(setup, clients, shared, {}, stack=False)
    if not setup.algorithm.personalizes:
        return evaluate_block(setup, clients, shared, setup.personal_model(shared, stored), stack=False)
    parts = []
    for c, client in enumerate(clients):
        own = {name: value[c] for name, value in stored.items()}
        solo.begin(round, client, client if key is None else key, shared, own)
        setup.algorithm.personalize(solo, round)
        tuned = {name: value.detach().clone().unsqueeze(0) for name, value in solo.live.items()}
        parts.append(evaluate_block(setup, [client], shared, tuned, stack=False))
    return Scores.join(parts)


class SerialEngine(StoreEngine):
    """The reference: every other engine is compared with it."""

    name = "serial"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._solo = Solo(setup)

    def train(
        self, round: int, clients: Sequence[int], shared: Tensors, extra: Mapping[int, Tensors] | None = None
    ) -> list[Report]:
        """See :meth:`Engine.train`."""
        reports = []
        for client in clients:
            self.check_stop()
            received = {**shared, **(extra or {}).get(client, {})}
            reports.append(run_client(self._solo, round, client, received, self.store.get(client)))
        return reports

    def evaluate(self, clients: Sequence[int], shared: Tensors, which: Which = "personal", round: int = 0) -> Scores:
        """See :meth:`Engine.evaluate`."""
        parts = []
        for block in blocks_of(clients, self.setup.data.test_sizes):
            self.check_stop()
            parts.append(score_clients(self._solo, block, shared, self.store.gather(block), which, round))
        return Scores.join(parts)
