"""From finished runs to the figures of a comparison."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from commonground.compare.methods import Method
from commonground.compare.statistics import holm, paired_difference, smallest_p, spread
from commonground.engine import Run
from commonground.keys import numpy_stream

__all__ = ["Tuning", "summarize"]

PERCENTILES = (5, 25, 50, 75, 95)

# Settings that a method may have of its own and that are always told.
_TOLD = ("lr", "local_epochs", "batch_size")


@dataclass(frozen=True)
class Tuning:
    """The candidates of one method and seed.

    Attributes:
        method: its label.
        seed: of the runs.
        candidates: the settings tried.
        scores: mean accuracy over clients on validation samples after the last round, one per candidate.
        best: which was chosen.
    """

    method: str
    seed: int
    candidates: Sequence[Mapping[str, Any]]
    scores: Sequence[float]
    best: int


def summarize(
    runs: Mapping[Method, Sequence[Run]] | Any,
    *,
    reference: str,
    seeds: Sequence[int],
    target: float | None,
    same_clients: bool,
    tuning: Sequence[Tuning],
    notes: Sequence[str],
    folder: Path | None,
) -> dict[str, Any]:
    """What ``comparison.json`` holds, without the command.

    Args:
        runs: per method, one run per seed.
        reference: label of the method the others are compared with.
        seeds: of the runs.
        target: accuracy to reach, if any.
        same_clients: whether client i is the same one for every seed.
        tuning: what a grid has chosen.
        notes: sentences that come first in the footnotes.
        folder: of the comparison.
    """
    raise NotImplementedError
