"""The numbers of every method in every engine stay what they were when ``numbers.json`` was written."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.numbers.cases import FILE, cases, machine, record

CASES = cases()
WRITTEN: dict[str, Any] = json.loads(FILE.read_text("utf-8"))


def test_every_case_is_written() -> None:
    assert list(CASES) == list(WRITTEN["cases"])


@pytest.mark.engine
@pytest.mark.parametrize("name", CASES)
def test_numbers_stay(name: str) -> None:
    torch.set_num_threads(1)
    if name.endswith(" ray"):
        pytest.importorskip("ray")
    before, now = WRITTEN["cases"][name], record(CASES[name])
    if "figures" in before and before["figures"] is None:  # bytes of single rounds, among them, are others since
        now["figures"] = None
    if "refused" in before or WRITTEN["machine"] == machine():
        assert now == before
        return
    # Another processor or PyTorch rounds differently; what does not depend on rounding stays all the same.
    assert now["bytes"] == before["bytes"]
    assert now["loss"] == (None if before["loss"] is None else pytest.approx(before["loss"], rel=1e-3))
    assert now["accuracy"] == pytest.approx(before["accuracy"], abs=0.05)
