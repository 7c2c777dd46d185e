"""The campaign in short: a few tries of every part, all of which hold."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.campaign.__main__ import PARTS
from tests.campaign.common import Outcome, Tally


@pytest.mark.parametrize("part", [part for part, (_, short) in PARTS.items() if short])
def test_all_holds(part: str) -> None:
    tally: Tally = import_module(f"tests.campaign.{part}").campaign(1, PARTS[part][True], 0.2)
    assert tally.findings == ()
    assert tally.held == tally.tried > 0


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome(0, "done\n", ""), ""),
        (Outcome(2, "", "commonground: no such file\n"), ""),
        (Outcome(130, "", "commonground: interrupted\n"), ""),
        (Outcome(None, "", ""), "it hung"),
        (Outcome(1, "", "Traceback (most recent call last):\nKeyError: 3\n"), "exit 1: "),
        (Outcome(-11, "", ""), "exit -11: "),
        (Outcome(2, "", "no such file\n"), "exit 2 without a sentence: 'no such file'"),
        (Outcome(0, "\x1b[2J", ""), "it printed '\\x1b' as it came"),
    ],
)
def test_what_counts_as_a_fault(outcome: Outcome, fault: str) -> None:
    assert outcome.fault().startswith(fault)
    assert bool(outcome.fault()) == bool(fault)
