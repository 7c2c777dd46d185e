"""This library, by the protocol of its peers."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import commonground as cg
from benchmarks.peers import common, samples
from benchmarks.peers.clock import Clock
from benchmarks.peers.nets import whole
from commonground.engine.loop import Loop


class Peer(common.Peer):
    """``cg.train`` with its defaults; the pictures are read as they are stored, and made tensors within the run."""

    title = "CommonGround"

    def find(self, path: Path | None) -> str:
        """The installed version."""
        return version("commonground")

    def run(self, path: Path | None, work: common.Work, clock: Clock) -> None:
        """A run like any other; only its test of a round is timed apart."""
        options = {"head_epochs": work.head_epochs, "body_epochs": work.body_epochs} if work.method == "fedrep" else {}
        timed = clock.testing(Loop._evaluate, _accuracy)
        # What is a test and what a round is told apart there.
        with patch.object(Loop, "_evaluate", timed):
            cg.train(
                work.method,
                samples.dealt(work),
                model="cnn" if work.net == "cnn" else whole(work.net),
                rounds=work.rounds + 1,
                participation=work.sampled / work.clients,
                batch_size=work.batch,
                local_epochs=work.body_epochs if work.method == "fedrep" else work.epochs,
                lr=work.lr,
                momentum=work.momentum,
                precision=work.precision,
                options=options,
            )


def _accuracy(scores: dict[str, Any]) -> float:
    found = scores.get("personal") or scores["global"]
    return float((found.headline * found.count).sum() / found.count.sum())
