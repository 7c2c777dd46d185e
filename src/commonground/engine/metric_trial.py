"""Metrics of the user's own are tried before the first round: they are asked for after the last one alone, and what
fails there has cost the whole run.
"""

from __future__ import annotations

from commonground.engine.backends.serial import score_clients
from commonground.engine.clients.sequential import SequentialClient
from commonground.engine.setup import Setup

__all__ = ["try_metrics"]


def try_metrics(setup: Setup) -> None:
    """Test the client with the most test rows with the initial model, as after the last round.

    Args:
        setup: of the run.

    Raises:
        ModelError: a metric fails, or gives something else than numbers.
    """
    if not setup.own_metrics or setup.data.described:  # of described data the rows are elsewhere
        return
    client = int(setup.data.test_sizes.argmax())
    stored = {name: value.unsqueeze(0) for name, value in setup.initial_personal.items()}
    shared = setup.moved(setup.initial_shared)
    score_clients(SequentialClient(setup), [client], shared, stored, "personal", 0, key=client, detailed=True)
