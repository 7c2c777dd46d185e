"""Whole runs on a device that is none (see :mod:`tests.devices.pretend`) end where runs on the host do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from commonground.algorithms import registry

SOME = ["fedavg", "fedrep", "ditto", "scaffold", "flute", "fedcp", "flexlora"]
LORA = ["lora", "ffa-lora", "rolora", "flexlora", "flora", "fedavg", "fedrep", "ditto", "scaffold"]


CASES = {
    "every method": ("batched", "vectors", sorted(registry)),
    "one after the other": ("serial", "vectors", SOME),
    "messages": ("messages", "vectors", SOME),
    "images": ("batched", "images", ["fedrep", "ditto", "fedbabu"]),
    "a pretrained model": ("batched", "texts", LORA),
    "answers of a pretrained model": ("batched", "answers", [m for m in LORA if m != "fedrep"]),
    "a pretrained model, one after the other": ("serial", "texts", ["lora", "rolora", "flora", "fedrep"]),
    "a pretrained model by messages": ("messages", "answers", ["lora", "flora"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_there_is_the_run_on_the_host(case: str) -> None:
    engine, kind, methods = CASES[case]
    if kind in ("texts", "answers"):
        pytest.importorskip("transformers")
    command = [sys.executable, "-m", "tests.devices.pretend", engine, kind, *methods]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert list(found) == methods
    assert max(found.values()) < 1e-13, found
