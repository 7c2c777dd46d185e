"""Answers over a network that are changed on the way: the client's round does not count, and the run goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.campaign.common import Tally, tries
from tests.network.test_lies import one_lie

__all__ = ["campaign"]


def campaign(seed: int, count: int, minutes: float) -> Tally:
    """So many changed answers."""
    findings, tried = [], 0
    for number in tries(count, minutes):
        with tempfile.TemporaryDirectory() as folder:
            wrong = one_lie(Path(folder), 1_000_003 * seed + number)
        tried += 1
        findings += [f"{number}: {wrong}"] if wrong else []
    return Tally(tried, tried - len(findings), tuple(findings))
