"""How far a run is: everything that a round changes, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from commonground.algorithms import Tensors
from commonground.engine.backends.base import Which
from commonground.engine.own_code import code_of
from commonground.engine.scores import Scores
from commonground.engine.setup import Setup
from commonground.models import base_sha256_of

__all__ = ["Progress"]


@dataclass
class Progress:
    """What a run has reached.

    Attributes:
        shared: the server's tensors.
        heard: [clients] round in which each client last took part; -1 for none so far.
        took_part: [clients] rounds of each client.
        totals: bytes, seconds and fingerprints, also those of a user's Python files (``code``); ``changed``: the round
            in which a shared tensor last changed; ``refused``: by client, how many of its rounds did not count, and why
            the last did not; ``best_round``, if a run looks for it.
        memory: what the server remembers and does not send.
        history: one row per round, as in ``rounds.jsonl``.
        done: rounds done.
        between: whether the clients' state is ahead of the finished rounds, so that nothing can be saved.
        last_scores: the test of the last of all rounds, in detail, if it covered everyone.
        kept: the earlier round whose models the run has gone back to, if it has.
    """

    shared: Tensors
    heard: npt.NDArray[np.int32]
    took_part: npt.NDArray[np.int32]
    totals: dict[str, Any]
    memory: Tensors = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    done: int = 0
    between: bool = False
    last_scores: dict[Which, Scores] = field(default_factory=dict)
    kept: int | None = None

    @property
    def models_of(self) -> int:
        """The round whose models these are."""
        return self.done if self.kept is None else self.kept

    @classmethod
    def of(cls, setup: Setup) -> Progress:
        """Before the first round."""
        clients, config = setup.data.clients, setup.config
        totals = {
            "bytes_up": 0,
            "bytes_down": 0,
            "seconds": 0.0,
            "data_fingerprint": setup.data.fingerprint(),
            "base_sha256": base_sha256_of(setup.model),
            "code": code_of(config, setup.model),
            "changed": {},
            "refused": {},
        }
        return cls(dict(setup.initial_shared), np.full(clients, -1, np.int32), np.zeros(clients, np.int32), totals)
