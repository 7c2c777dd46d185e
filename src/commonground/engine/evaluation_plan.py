"""Which rounds of a run are tested, on whom, and with which models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from commonground.engine.backends.base import Which
from commonground.engine.setup import Setup
from commonground.keys import numpy_stream

__all__ = ["PANEL", "PANEL_FROM", "EvaluationPlan"]

# Beyond this many clients, rounds during training are judged on a fixed panel, so that a round's cost depends on the
# sampled clients and not on how many exist; the last evaluation covers everyone, unless a sample is asked for.
PANEL_FROM = 2_000
PANEL = 200


class EvaluationPlan:
    """The tests of a run.

    Args:
        setup: of the run.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.config = setup, setup.config

    def is_due(self, round: int) -> bool:
        """Whether a round is evaluated."""
        return self.config.is_tested(round)

    @property
    def kinds(self) -> list[Which]:
        """The models that are tested; a method without personal models has its global one tested once."""
        kinds: list[Which] = ["global"] if self.setup.has_global_model else []
        return [*kinds, "personal"] if self.setup.has_personal_model else kinds

    @cached_property
    def validated(self) -> Sequence[int]:
        """Clients of the panel that hold rows out for validation; if none does, as many others."""
        able = np.flatnonzero(self.setup.data.validation_sizes).tolist()
        panel = set(self.panel)
        return [client for client in able if client in panel] or able[: len(panel)]

    @cached_property
    def panel(self) -> Sequence[int]:
        """Clients evaluated during training."""
        clients = self.setup.data.clients
        return self._drawn("panel", self.config.eval_clients or (clients if clients <= PANEL_FROM else PANEL))

    @cached_property
    def finals(self) -> Sequence[int]:
        """Clients of the last test: all, unless a sample is asked for and the rounds' tests are of a panel, too."""
        clients = self.setup.data.clients
        return self._drawn("finals", clients if self.covers_everyone else self.config.final_eval_clients or clients)

    def _drawn(self, purpose: str, size: int) -> Sequence[int]:
        """So many clients, in order, by the seed; all if there are no more."""
        clients = self.setup.data.clients
        if size >= clients:
            return range(clients)
        chosen = numpy_stream(self.config.seed, purpose).choice(clients, size, replace=False, shuffle=False)
        return sorted(int(c) for c in chosen)

    @property
    def covers_everyone(self) -> bool:
        """Whether a round's test is one of all clients."""
        return len(self.panel) == self.setup.data.clients
