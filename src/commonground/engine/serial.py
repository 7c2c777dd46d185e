"""One client after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from commonground.algorithms import Tensors, Update
from commonground.engine.base import Report, StoreEngine
from commonground.engine.evaluation import Scores, blocks_of, evaluate_block
from commonground.engine.setup import Setup
from commonground.engine.solo import Solo

__all__ = ["SerialEngine", "run_client"]


def run_client(
    solo: Solo, round: int, client: int, shared: Tensors, personal: Tensors, *, key: int | None = None
) -> Report:
    """A client's whole round on a working model.

    Args:
        solo: the working model.
        round: 1-based round.
        client: the client's position in the data set at hand.
        shared, personal: what the server sent and what the client kept.
        key: the client's number in the federation; by default its position.
    """
    setup = solo.setup
    solo.begin(round, client, client if key is None else key, shared, personal)
    sent = setup.algorithm.client_update(solo, round)
    kept = {name: solo.live[name].detach().clone() for name in setup.personal_names}
    return Report(Update(client, solo.size, sent), solo.loss, kept)


class SerialEngine(StoreEngine):
    """The reference: every other engine is compared with it."""

    name = "serial"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._solo = Solo(setup)

    def train(self, round: int, clients: Sequence[int], shared: Tensors) -> list[Report]:
        """See :meth:`Engine.train`."""
        reports = []
        for client in clients:
            self.check_stop()
            reports.append(run_client(self._solo, round, client, shared, self.store.get(client)))
        return reports

    def evaluate(self, clients: Sequence[int], shared: Tensors) -> Scores:
        """See :meth:`Engine.evaluate`."""
        parts = []
        for block in blocks_of(clients, self.setup.data.test_sizes):
            self.check_stop()
            parts.append(evaluate_block(self.setup, block, shared, self.store.gather(block), stack=False))
        return Scores.join(parts)
